"""`tuner.tune_kernel`: one call as Kernel Tuner has it, results that say how they are known, refusals by name."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuner
from tuner import operators
from tuner.errors import NoValidConfigError, UsageError
from tuner.foreign.tune import _effort, _result
from tuner.results.attempt import Evidence, Failed, Measurement, Stage
from tuner.spec.space import Space
from tuner.store.sql import Store

SAXPY = """
template <typename T> __global__ void saxpy(T* y, const T* x, T a, int n) {
  for (int i = blockIdx.x * block_size_x * per + threadIdx.x, k = 0; k < per; k++, i += block_size_x)
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
N = np.int32(40000)
X, Y = np.random.default_rng(0).standard_normal((2, N)).astype(np.float32)
A = np.float32(2)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(operators.VARIABLE, "")
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    before = list(operators.__path__)
    yield
    operators.__path__[:] = before


def tune(tmp_path: Path, **other: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    given = {
        "tune_params": {"block_size_x": [64, 128], "per": [1, 3]},
        "grid_div_x": ["block_size_x", "per"],
        "answer": [A * X + Y, None, None, None],
        "gpu": "H200",
        "db": str(tmp_path / "tuner.db"),
    }
    params = {**given, **other}
    return tuner.tune_kernel("saxpy<float>", SAXPY, int(N), [Y, X, A, N], **params)


def test_one_call_finds_a_verified_config_and_stores_it_and_goes_on_from_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, environment = tune(tmp_path)
    assert {(result["block_size_x"], result["per"]) for result in results} == {(64, 1), (64, 3), (128, 1), (128, 3)}
    for result in results:
        assert result["evidence"] == "predicted" and result["predicted_cost"] > 0 and "time" not in result
    best = environment["best_config"]
    assert best in results and best["verified"] is True
    assert (environment["device_name"], environment["evidence"]) == ("H200", "predicted")
    assert "predicted, not measured on H200" in capsys.readouterr().out
    with Store.open(str(tmp_path / "tuner.db")) as store:
        (record,) = store.records()
    assert record.identity.operator == environment["operator"]
    assert dict(record.config) == {name: best[name] for name in ("block_size_x", "per")}
    again, _ = tune(tmp_path, quiet=True)
    assert again[: len(results)] == results or {str(config) for config in again} >= {str(result) for result in results}
    assert capsys.readouterr().out == ""
    other, elsewhere = tune(tmp_path, tune_params={"block_size_x": [64], "per": [1]})
    assert elsewhere["operator"] != environment["operator"] and len(other) == 1  # another space is another operator


@pytest.mark.slow
def test_a_header_that_changed_is_another_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = set()
    for factor in (2, 3):
        (tmp_path / "factor.h").write_text(f"#define FACTOR {factor}\n")
        text = "__global__ void grow(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= FACTOR; }"
        text = f'#include "factor.h"\n{text}'
        x = np.arange(8, dtype=np.float32)
        answer = [factor * x, None]
        given = {"answer": answer, "gpu": "A100", "db": str(tmp_path / "tuner.db"), "quiet": True}
        _, environment = tuner.tune_kernel("grow", text, 1, [x, np.int32(8)], {"block_size_x": [32, 64]}, **given)
        names.add(environment["operator"])
    assert len(names) == 2


def test_a_wrong_answer_is_no_winner(tmp_path: Path) -> None:
    with pytest.raises(NoValidConfigError, match="no config of saxpy<float> passed its checks: y: RMSE ratio"):
        tune(tmp_path, answer=[A * X, None, None, None])


ABSENT = [
    ({"strategy": "pso"}, "strategy='pso': unknown strategy"),
    ({"strategy_options": {"popsize": 4}}, "strategy_options has popsize: only max_fevals and time_limit"),
    ({"observers": [1]}, r"observers=\[1\]: tuner.tune_kernel does not support this option"),
    ({"simulation_mode": True}, "simulation_mode=True: .* tuner replay"),
    ({"cache": "x.json"}, "cache='x.json': .*the next call resumes from them"),
    ({"objective": "energy"}, "objective='energy': the objective is always the time"),
    ({"device": 1}, "device=1: .*CUDA_VISIBLE_DEVICES chooses"),
    ({"texmem_args": {"t": X}}, "texmem_args: textures are not supported"),
    ({"speed": 3}, "tune_kernel has no option 'speed'"),
    ({"gpu": "H2000"}, "H2000"),
]


@pytest.mark.parametrize(("other", "why"), ABSENT, ids=[why for _, why in ABSENT])
def test_options_that_there_are_not_are_refused_by_name(other: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        tune(tmp_path, **other)


@pytest.mark.slow
def test_what_is_passed_over_or_assumed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_GPU", raising=False)
    small = {"block_size_x": [64], "per": [1]}
    with pytest.warns(UserWarning) as caught:
        _, environment = tune(tmp_path, gpu=None, iterations=32, tune_params=small)
    text = " ".join(str(line.message) for line in caught)
    assert "predictions assume H100" in text and "iterations=32 is passed over" in text
    assert environment["device_name"] == "H100"
    monkeypatch.setenv("TUNER_GPU", "A100")
    assert tune(tmp_path, gpu=None, tune_params=small)[1]["device_name"] == "A100"


def test_strategies_are_ours_or_have_one_of_ours() -> None:
    class Config:
        pass

    space: Space[Any] = Space(Config, {"a": tuple(range(400))})
    assert _effort({}, space) == {"method": "gp", "budget": 128, "seconds": None, "seed": 0}
    assert _effort({"strategy": "brute_force"}, space)["budget"] == 400
    options = {"max_fevals": 7, "time_limit": 60}
    result = _effort({"strategy": "random_sample", "strategy_options": options, "seed": 3}, space)
    assert result == {"method": "random", "budget": 7, "seconds": 60, "seed": 3}


class _Tried:
    """As search.log.Tried, of a device."""

    verdict = None

    def __init__(self, **attempt: Any) -> None:
        self.attempt = type(
            "Attempt", (), {"config": {"b": 64}, "failure": None, "measurement": None, "prediction": None}
        )
        for name, value in attempt.items():
            setattr(self.attempt, name, value)


def test_a_measured_result_has_a_time_in_milliseconds_and_metrics_and_no_cost() -> None:
    outcome: Any = type("Outcome", (), {"evidence": Evidence.MEASURED})
    timed: Any = _Tried(measurement=Measurement(1500.0, 1490.0, 1510.0, 6))
    metrics = {"GB/s": lambda p: 3 / p["time"], "per_ms": "64 / time"}
    result = _result(timed, outcome, metrics)
    assert result == {"b": 64, "evidence": "measured", "time": 1.5, "GB/s": 2.0, "per_ms": pytest.approx(64 / 1.5)}
    failed: Any = _Tried(failure=Failed(Stage.COMPILE, "no such name"))
    assert _result(failed, outcome, metrics) == {"b": 64, "evidence": "measured", "failure": "compile: no such name"}


def test_nothing_of_it_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, tuner, tuner.dispatcher; print('tuner.foreign' in sys.modules, callable(tuner.tune_kernel))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'tune_kernels'"):
        tuner.tune_kernels  # noqa: B018
