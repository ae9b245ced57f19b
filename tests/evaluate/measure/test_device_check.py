"""What a judge asks of a device, answered by the emulator: what is right must not be called wrong where a GPU is."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.support.claims import example, first_arch
from tests.support.simulated_device import SimulatedDevice, Simulation
from tuner import operators
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.errors import MachineError
from tuner.evaluate.measure.device import Call, Code
from tuner.evaluate.measure.device_arguments import Arena
from tuner.evaluate.measure.device_check import DeviceCheck, cases
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.operator import Implementation, Operator
from tuner.spec.problem import to_fields

ALL = [
    (operators.load(name), implementation)
    for name in operators.names()
    for implementation in operators.implementations(name)
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("operator", "implementation"), ALL, ids=lambda implementation: implementation.name)
def test_the_smallest_edge_is_right_with_every_kind_of_inputs(
    operator: Operator[Any], implementation: Implementation[Any, Any]
) -> None:
    problem = example(operator, implementation)
    config = implementation.default(problem, first_arch(implementation, problem))
    smallest = to_fields(operator.tails(problem)[0])
    edges = (case for case in cases(operator, smallest, every=True) if operators.serves(implementation, case.problem))
    for case in islice(edges, len(operator.input_kinds)):
        # Built as test_operators.py has it built.
        outputs, run = emulator.run(
            Instance(operator, implementation, case.problem, config), case.arrays, Mode(), instrumented=True
        )
        assert run.findings == ()
        for error in case.expected.errors(outputs):
            assert error.ok, f"{case.name}: {error.reason}"


class Idle(SimulatedDevice):
    """Its kernels write nothing."""

    def run(self, program: Any, call: Call, limit_s: float) -> None:
        pass


@pytest.fixture(scope="module")
def row_norm(own_folder: None) -> Operator[Any]:  # noqa: ARG001  # where it is found
    return operators.load("row_norm")


@contextmanager
def judging(
    device: SimulatedDevice, operator: Operator[Any], *, limit_s: float = 1.0, **sizes: int
) -> Iterator[tuple[DeviceCheck, Arena]]:
    """A judge of the naive implementation, and the timed problem in the memory of the device."""
    problem = operator.problem(**sizes)
    naive = operators.implementation(operator.name, "naive")
    config = to_fields(naive.default(problem, first_arch(naive, problem)))
    code = Code(InstanceFields(operator.name, "naive", to_fields(problem), config), b"")
    drawn = operator.inputs(problem, np.random.default_rng(0), operator.input_kinds[0])
    with Arena(device, operator, problem, drawn) as arena:
        yield DeviceCheck(device, code, limit_s), arena


def test_every_edge_meets_every_kind_of_inputs_or_one_kind_in_turn() -> None:
    operator = operators.load("paged_attention")
    problem, kinds = operator.problem(head_dim=16, max_pages=4), operator.input_kinds
    edges = len(operator.tails(problem))
    drawn = [case.name.split()[-1] for case in cases(operator, to_fields(problem), every=False)]
    assert drawn == [kinds[i % len(kinds)] for i in range(edges)]
    assert [case.name.split()[-1] for case in cases(operator, to_fields(problem), every=True)] == [*kinds] * edges


def test_what_another_kernel_did_not_find_on_the_timed_problem_is_wrong(row_norm: Operator[Any]) -> None:
    with judging(Simulation().open(), row_norm, rows=40) as (judge, arena):
        judge.run(cases(row_norm, to_fields(arena.problem), every=False)[0], twice=False)
        verdict = judge.compare_timed(arena, judge.compare_timed(arena, {}))
        assert judge.right
        judge.compare_timed(arena, {name: array + 1 for name, array in verdict.items()})
    assert not judge.right


def test_an_edge_case_whose_result_cancels_excuses_no_wrong_output_of_another_problem(
    row_norm: Operator[Any],
) -> None:
    with judging(Simulation().open(), row_norm, rows=40) as (judge, arena):
        case = cases(row_norm, to_fields(arena.problem), every=False)[0]
        right = case.expected
        noise = 1 + 0.5 * np.random.default_rng(0).standard_normal(right.exact["y"].shape)
        cancelling = replace(right, rounded={**right.rounded, "y": right.exact["y"] * noise})
        judge.run(replace(case, expected=cancelling), twice=False)
        error = next(error for error in judge.verdict("here").errors if error.name == "y")
        assert error.cancels
        assert error.limit > 0.3
        verdict = judge.compare_timed(arena, {})
        judge.compare_timed(arena, verdict)
        assert judge.right
        judge.compare_timed(arena, {**verdict, "y": (1.2 * verdict["y"].astype(float)).astype(verdict["y"].dtype)})
    assert not judge.right


@pytest.mark.parametrize("wrong", ["o", "lse"])
def test_a_kernel_that_is_wrong_in_one_of_its_outputs_is_wrong(wrong: str) -> None:
    operator = operators.load("flash_attention")
    with judging(Simulation().open(), operator, head_dim=8, batch=1, heads=1, seq_q=1) as (judge, arena):
        case = cases(operator, to_fields(arena.problem), every=False)[0]
        right = case.expected
        exact, rounded = ({**arrays, wrong: arrays[wrong] + 1} for arrays in (right.exact, right.rounded))
        judge.run(replace(case, expected=replace(right, exact=exact, rounded=rounded)), twice=False)
    assert [error.name for error in judge.verdict("here").errors if not error.ok] == [wrong]
    assert not judge.right


class Limited(SimulatedDevice):
    """Notes how long each launch may take."""

    limits_s: tuple[float, ...] = ()

    def run(self, program: Any, call: Call, limit_s: float) -> None:
        self.limits_s += (limit_s,)
        super().run(program, call, limit_s)


def test_a_kernel_that_hangs_is_given_up_sooner_on_an_edge_than_on_the_timed_problem(row_norm: Operator[Any]) -> None:
    device = Limited(Simulation())
    with judging(device, row_norm, limit_s=60.0, rows=40) as (judge, arena):
        judge.run(cases(row_norm, to_fields(arena.problem), every=False)[0], twice=False)
        judge.compare_timed(arena, {})
    edge_s, *timed_s = device.limits_s
    assert edge_s < 10
    assert timed_s == [60.0, 60.0]


class Crowded(Limited):
    """Another process uses the device, too."""

    def others(self) -> int:
        return 1


def test_beside_others_an_edge_may_take_as_long_as_the_end_of_a_process_of_theirs(row_norm: Operator[Any]) -> None:
    limits_s = []
    for device in (Limited(Simulation()), Crowded(Simulation())):
        with judging(device, row_norm, rows=40) as (judge, arena):
            judge.run(cases(row_norm, to_fields(arena.problem), every=False)[0], twice=False)
        limits_s += device.limits_s
    assert limits_s == [1.0, 10.0]


def test_an_element_of_the_timed_problem_that_nobody_wrote_is_found(row_norm: Operator[Any]) -> None:
    with judging(Idle(Simulation()), row_norm, rows=40) as (judge, arena):
        judge.compare_timed(arena, {})
    assert not judge.right
    assert "unwritten elements" in judge.verdict("here").reason


class Unwritable(SimulatedDevice):
    def write(self, address: int, data: Any) -> None:  # noqa: ARG002  # part of the protocol
        raise MachineError("no copy reaches the device")


def test_memory_is_given_back_where_an_input_cannot_be_written(row_norm: Operator[Any]) -> None:
    device, problem = Unwritable(Simulation()), row_norm.problem(rows=40)
    with pytest.raises(MachineError, match="no copy"):
        Arena(device, row_norm, problem, row_norm.inputs(problem, np.random.default_rng(0), "normal"))
    assert not device._buffers


def test_a_large_output_is_compared_in_a_quarter_of_a_million_elements_of_every_column(row_norm: Operator[Any]) -> None:
    with judging(Simulation().open(), row_norm, rows=1 << 15, width=32) as (judge, arena):
        thinned = judge.compare_timed(arena, {})["y"]
        whole = arena.outputs()["y"]
    step = round(whole.size / thinned.size)
    assert 1 << 17 < thinned.size <= 1 << 18
    assert np.array_equal(thinned, whole.reshape(-1)[::step])
    assert len({i % 32 for i in range(0, whole.size, step)}) == 32
