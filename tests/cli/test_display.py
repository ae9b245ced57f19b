"""Tests of the progress display of a search."""

from types import SimpleNamespace
from typing import Any

from tuner.cli.display import Standing
from tuner.results.attempt import Evidence
from tuner.search.study import Progress

UNTUNED = ("mma_sync", "default")


def tried(key: tuple[str, str], value: float | None) -> Any:
    implementation = SimpleNamespace(name=key[0])
    return SimpleNamespace(
        instance=SimpleNamespace(key=key, implementation=implementation), attempt=SimpleNamespace(value=value)
    )


def step(done: int, best: Any, latest: Any, phase: str = "explore") -> Progress:
    return Progress(phase, done, 32, 0, best, latest)


def test_the_gain_is_over_what_an_untuned_call_runs() -> None:
    standing, default, better = Standing(Evidence.PREDICTED, UNTUNED), tried(UNTUNED, 3.0), tried(("wgmma", "a"), 2.0)
    assert "gain" not in standing.after(step(1, better, better), 0.0)  # the untuned config was not tried yet
    assert standing.after(step(2, better, default), 1.0).startswith("predicted gain 50 %")


def test_tries_without_a_gain_and_the_time_left_are_counted() -> None:
    standing, default = Standing(Evidence.MEASURED, UNTUNED), tried(UNTUNED, 3.0)
    for done in range(1, 6):
        result = standing.after(step(done, default, tried(("naive", str(done)), 9.0)), 2.0 * done)
    assert result == "best so far: mma_sync · none for 4 tries · 0:54 left"
    better = tried(("wgmma", "a"), 2.5)
    assert "none for" not in standing.after(step(6, better, better), 12.0)


def test_a_search_without_a_valid_config_says_so() -> None:
    result = Standing(Evidence.PREDICTED, UNTUNED).after(step(1, None, tried(UNTUNED, None)), 0.0)
    assert result == "nothing valid yet · none for 1 try"
