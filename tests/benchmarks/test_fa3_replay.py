"""Tests of the benchmark of replays: launches that it reads, and files that it refuses."""

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tuner.base.assets import ROOT
from tuner.errors import UsageError


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("fa3_replay")


def test_every_measured_launch_is_a_row(benchmark: ModuleType) -> None:
    rows = list(benchmark.rows(benchmark.DATA))
    assert len({row.name for row in rows}) == len(rows) == 12
    assert all(row.measured_us > 0 and row.simulated_us > 0 for row in rows)


@pytest.mark.parametrize("about", [{}, {"boxes": {"x": [1, "q", 2]}}, {"boxes": {"0": 1}}])
def test_a_file_that_describes_no_launch_is_refused(benchmark: ModuleType, about: object, tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    path.write_text(json.dumps(about))
    with pytest.raises(UsageError, match="does not describe a launch"):
        benchmark.foreign_launch(path)


def test_an_ablation_changes_what_it_names(benchmark: ModuleType) -> None:
    whole = benchmark.rates_of(benchmark.gpu("H100"), benchmark.CLOCK_MHZ)
    assert all(rates != whole for rates in benchmark.ablations(whole).values())
