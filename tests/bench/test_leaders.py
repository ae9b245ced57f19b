"""Tests of the sentence that names the fastest kernels."""

from dataclasses import replace

from tuner.bench.comparison import Comparison, Row
from tuner.bench.forecast import Forecast, Outlook
from tuner.bench.leaders import leaders
from tuner.evaluate.measure.samples import Estimate


def forecast(T: int, **costs: float) -> Forecast:
    rows = tuple(Outlook(name, "the default", 1.0, 1.0, 1.0, 1.0, cost, "tensor") for name, cost in costs.items())
    return Forecast("scan", {"T": T, "H": 4}, "H200", rows, ())


def timed(**rows: tuple[str, float, float]) -> Comparison:
    result = tuple(
        Row(name, state, time_us=Estimate((low + high) / 2, low, high, 9)) for name, (state, low, high) in rows.items()
    )
    device = {"gpu": "H200", "model": "NVIDIA H200"}
    return Comparison("scan", {"T": 64}, "normal", {}, "fused", device, "policy", result)


def test_one_problem_names_the_least() -> None:
    assert leaders([forecast(64, fused=2.0, naive=9.0)]) == "Ahead (predicted): fused, 78 % below the next."


def test_a_sweep_says_where_the_lead_changes() -> None:
    sweep = [forecast(T, fused=100.0, split=float(T)) for T in (256, 64, 128)]
    assert (
        leaders(sweep)
        == "Ahead (predicted): split at T 64, 36 % below the next; fused at T 128 to 256, 22 to 61 % below the next."
    )


def test_sizes_at_which_nothing_was_timed_are_left_out() -> None:
    nothing = replace(timed(), problem={"T": 128})
    assert leaders([timed(ours=("ok", 9.0, 11.0)), nothing]) == "Ahead (measured): ours at T 64."


def test_times_that_cannot_be_told_apart_are_ahead_together_and_a_copy_is_no_contender() -> None:
    result = timed(ours=("ok", 9.0, 11.0), copy=("roof", 1.0, 2.0), peer=("ok", 10.0, 12.0), slow=("ok", 20.0, 21.0))
    assert leaders([result]) == "Ahead (measured): ours and peer."


def test_nothing_is_said_where_nothing_was_timed() -> None:
    assert leaders([timed()]) == ""
