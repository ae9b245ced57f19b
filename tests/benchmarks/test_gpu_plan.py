"""Tests of the plan of `gpu.py`: which steps each call contains. Nothing is run."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner import operators
from tuner.base.assets import ROOT

BENCHMARKS = ROOT / "benchmarks"
Programs = Callable[[str], Any]
_AHEAD = ("kda", "flash_attention")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@dataclass
class Clock:
    """As much of a run as the order of its steps depends on."""

    left_s: float
    known: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)

    def done(self, name: str) -> bool:
        return name in self.known

    def say(self, text: str) -> None:
        self.said.append(text)


class Recorder:
    """A run that begins every step, and does none; with a device that may belong to one process at a time."""

    small, simulate, left_s, out = True, False, 1000.0, Path()

    def __init__(self, *, exclusive: bool) -> None:
        self.exclusive, self.begun = exclusive, list[str]()
        self.gpu, self.worker = SimpleNamespace(name="H200"), SimpleNamespace(rest=lambda: self.begun.append("rest"))
        self.rows = SimpleNamespace(steps={"conformance": {"failed": ["tests/gpu/test_wgmma_gpu.py::test_one"]}})

    def done(self, name: str) -> bool:
        return name in self.begun

    def say(self, text: str) -> None: ...

    def show(self, name: str, work: Callable[[], object]) -> None: ...

    def step(self, name: str, *_: Any, **__: Any) -> bool:
        if not self.done(name):
            self.begun.append(name)
        return False


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_timer_is_judged_first_then_kernels_are_tested_and_nothing_is_timed_beside(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, *, exclusive: bool
) -> None:
    gpu, run = programs("gpu"), Recorder(exclusive=exclusive)
    monkeypatch.setattr(gpu.tests, "begun", lambda which, *_, **__: nullcontext(run.begun.append(f"begin {which.log}")))
    monkeypatch.setattr(gpu, "warming", lambda *_: nullcontext(run.begun.append("warming")))
    gpu.everything(run, ["kda"], nvrtc="libnvrtc.so")
    order = [name for name in run.begun if name != "rest"]
    asked = [f"timer {question.name}" for question in programs("gpu_timer").QUESTIONS]
    assert order[: 2 + len(asked)] == ["installed", "device", *asked]
    assert order[2 + len(asked) :][:2] == ["begin measuring.txt", "measuring"]
    assert ("warming" in order) is not exclusive
    beside = order.index("begin conformance.txt")
    assert order[beside + 1 : beside + 3] == (
        ["conformance", "begin again.txt"] if exclusive else ["compiled", "conformance"]
    )
    assert "begin again.txt" in order and "wgmma with another NVRTC" in order
    timed = next(i for i, name in enumerate(order) if name.startswith("defaults"))
    assert "verification kda" in order[:timed] and "compiled" in order[:timed]


def test_the_first_call_times_kda_and_flash_attention_beside_peers_before_anything_else(programs: Programs) -> None:
    first, _ = programs("gpu_plan").plan([], small=False)
    head = [(planned_step.kind, planned_step.operator.name) for planned_step in first[:6]]
    kinds = ("defaults", "search", "peers")
    assert head == [(kind, name) for name in ("kda", "flash_attention") for kind in kinds]
    peers = next(
        planned_step for planned_step in first if planned_step.kind == "peers" and planned_step.operator.name == "kda"
    )
    assert peers.patience_s >= 300


def test_every_operator_is_searched_before_the_peers_of_others_take_their_time(programs: Programs) -> None:
    first, _ = programs("gpu_plan").plan([], small=False)
    others = [
        i
        for i, planned_step in enumerate(first)
        if planned_step.kind == "peers" and planned_step.operator.name not in _AHEAD
    ]
    assert {planned_step.operator.name for planned_step in first[: others[0]] if planned_step.kind == "search"} == set(
        operators.names()
    )
    searched = {
        (planned_step.operator.name, planned_step.problem) for planned_step in first if planned_step.kind == "search"
    }
    assert searched == {
        (planned_step.operator.name, planned_step.problem) for planned_step in first if planned_step.kind == "peers"
    }


def test_attention_meets_its_peers_at_every_head_dim_length_and_mask(programs: Programs) -> None:
    first, later = programs("gpu_plan").plan([], small=False)
    met = {
        (planned_step.problem.head_dim, planned_step.problem.seq_q, planned_step.problem.causal)
        for planned_step in (*first, *later)
        if planned_step.kind == "peers"
        and planned_step.operator.name == "flash_attention"
        and planned_step.problem.seq_q > 1
    }
    assert set(product((40, 64, 72, 80, 96, 128, 160, 192), (2048, 8192, 16384), (False, True))) <= met


def spending(programs: Programs, monkeypatch: pytest.MonkeyPatch, share: float) -> list[tuple[str, float]]:
    """What steps are given, of which each takes a share of it."""
    gpu, given = programs("gpu"), list[tuple[str, float]]()

    def spend(run: Clock, each: Any, seconds: float) -> None:
        given.append((each.name, seconds))
        run.left_s -= share * seconds
        run.known.add(each.name)

    for kind in gpu.STEPS:
        monkeypatch.setitem(gpu.STEPS, kind, spend)
    return given


@pytest.mark.parametrize("which", [0, 1], ids=["first", "later"])
def test_a_step_begins_where_it_fits_and_the_rest_waits_for_another_call(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    gpu, listed = programs("gpu"), programs("gpu_plan").plan([], small=False)[which]
    given = spending(programs, monkeypatch, 1.0)
    planned, known, calls = {entry.name: entry.seconds for entry in listed}, set[str](), 0
    while len(known) < len(planned):
        clock = Clock(420.0, known)
        gpu.carry_out(clock, listed)
        calls += 1
        assert clock.left_s > -1e-6
        assert len(known) == len(planned) or "wait for another call" in clock.said[-1]
    assert sorted(name for name, _ in given) == sorted(planned)
    assert all(seconds >= planned[name] for name, seconds in given)
    assert calls <= sum(planned.values()) / 420 + 2


def test_where_there_is_more_time_steps_share_it_out(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, (first, _) = programs("gpu"), programs("gpu_plan").plan(["kda"], small=False)
    given = spending(programs, monkeypatch, 0.5)  # one that is quicker leaves its rest to the next
    gpu.carry_out(Clock(1000.0), first)
    seconds = dict(given)
    assert seconds.keys() == {planned_step.name for planned_step in first}
    searches = [planned_step for planned_step in first if planned_step.kind == "search"]
    assert all(seconds[search.name] > 2 * search.seconds for search in searches)


@pytest.mark.parametrize("minutes", [2.0, 8.0, 10.0])
def test_a_minute_or_an_eighth_is_not_planned_and_the_outline_keeps_to_that(programs: Programs, minutes: float) -> None:
    gpu, whole = programs("gpu"), programs("gpu_plan").planned_s(60 * minutes)
    assert 60 * minutes - whole == min(60.0, 7.5 * minutes)
    lines = gpu.outline(minutes, ["kda"], small=False).splitlines()
    assert [line.split("s  ")[1] for line in lines[:3]] == ["installed", "device", "timer monitor"]
    assert all(float(line.split(" s")[0]) <= whole for line in lines if " s  " in line)
