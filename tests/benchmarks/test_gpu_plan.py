"""What `gpu.py` does in which call, by the steps that it plans; nothing is run."""

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


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@dataclass
class Clock:
    """As much of a run as the order of its steps depends on."""

    left_s: float
    known: set[str] = field(default_factory=set)

    def done(self, name: str) -> bool:
        return name in self.known


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_gpu_that_one_process_may_open_is_tested_when_nobody_else_has_it(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, *, exclusive: bool
) -> None:
    gpu, begun = programs("gpu"), list[str]()
    run = SimpleNamespace(
        small=True,
        simulate=False,
        exclusive=exclusive,
        out=Path(),
        done=lambda _: False,
        until=lambda _: 1.0,
        left_s=0.0,
    )
    run.step = lambda name, _: begun.append(name)
    beside = nullcontext(True)
    monkeypatch.setattr(gpu.tests, "begun", lambda *_, **__: begun.append("tests beside the rest") or beside)
    gpu.everything(run, ["kda"])
    tested = ["conformance", "matmul"] if not exclusive else ["matmul", "conformance"]
    before = [] if exclusive else ["tests beside the rest"]
    assert begun == ["device", *before, "compiled", "verification kda", *tested, "measuring"]


def test_every_operator_is_searched_before_peers_of_more_than_two_take_their_time(programs: Programs) -> None:
    first, _ = programs("gpu_plan").plan([], small=False)
    third = [i for i, each in enumerate(first) if each.kind == "peers"][2]
    assert {each.operator.name for each in first[:third] if each.kind == "search"} == set(operators.names())
    searched = [(each.operator.name, each.problem) for each in first if each.kind == "search"]
    assert searched == [(each.operator.name, each.problem) for each in first if each.kind == "peers"]


def test_attention_meets_its_peers_at_every_head_dim_length_and_mask(programs: Programs) -> None:
    first, later = programs("gpu_plan").plan([], small=False)
    met = {
        (each.problem.head_dim, each.problem.seq_q, each.problem.causal)
        for each in (*first, *later)
        if each.kind == "peers" and each.operator.name == "flash_attention" and each.problem.seq_q > 1
    }
    assert set(product((40, 64, 72, 80, 96, 128, 160, 192), (2048, 8192, 16384), (False, True))) <= met


def test_a_later_call_gives_each_step_its_time_and_leaves_the_rest_to_another(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, (_, later) = programs("gpu"), programs("gpu_plan").plan([], small=False)
    given: list[tuple[str, float]] = []

    def spend(run: Clock, each: Any, seconds: float) -> None:
        given.append((each.name, seconds))
        run.left_s -= seconds
        run.known.add(each.name)

    for kind in gpu.STEPS:
        monkeypatch.setitem(gpu.STEPS, kind, spend)
    planned, known, calls = {each.name: each.seconds for each in later}, set[str](), 0
    while len(known) < len(planned):
        clock = Clock(480.0, known)
        gpu.carry_out(clock, later, whole=True)
        calls += 1
        assert clock.left_s > -1e-6
    assert sorted(name for name, _ in given) == sorted(planned)
    assert all(seconds >= planned[name] for name, seconds in given)
    assert calls <= sum(planned.values()) / 480 + 2


def test_the_first_list_shares_out_what_time_there_is(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, (first, _) = programs("gpu"), programs("gpu_plan").plan([], small=False)
    given: dict[str, float] = {}

    def spend(run: Clock, each: Any, seconds: float) -> None:
        given[each.name] = seconds
        run.left_s -= seconds / 2  # one that is quicker leaves its rest to the next
        run.known.add(each.name)

    for kind in gpu.STEPS:
        monkeypatch.setitem(gpu.STEPS, kind, spend)
    gpu.carry_out(Clock(384.0), first)
    assert given.keys() == {each.name for each in first}
    names = [each.name for each in first if each.kind == "defaults"]
    assert given[names[-1]] > given[names[0]]
