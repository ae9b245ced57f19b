"""Tests of a traced plan at sizes other than those it was traced with."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.support.claims import example, first_arch
from tuner import operators
from tuner.arch import Arch
from tuner.compiler.standalone.general import General, general
from tuner.compiler.standalone.sizes import Named, Size, Term, spell, term_of, value
from tuner.errors import TunerError
from tuner.spec.instance import Instance
from tuner.spec.plan import Plan
from tuner.spec.problem import extents

PAIRS = [
    (name, implementation.name) for name in operators.names() for implementation in operators.implementations(name)
]


def sized(**sizes: int) -> tuple[list[Size], dict[Term, None]]:
    conditions: dict[Term, None] = {}
    return [Size.named(name, size, conditions) for name, size in sizes.items()], conditions


def case_of(operator: str, implementation: str) -> tuple[Instance, Arch]:
    result, known = operators.load(operator), operators.implementation(operator, implementation)
    problem = example(result, known)
    arch = first_arch(known, problem)
    return Instance.default(result, known, problem, arch), arch


@cache
def followed(operator: str, implementation: str) -> General:
    return general(*case_of(operator, implementation))


def own_sizes(problem: Any) -> dict[str, int]:
    return {name: getattr(problem, name) for name in extents(problem)}


def test_arithmetic_on_sizes_is_remembered() -> None:
    (a, b), _ = sized(a=10, b=3)
    result = -(-a * b // 4) + (a % 7 - b) * 2
    assert result == 8 + 0
    assert spell(term_of(result)) == "ceil_div(a * b, 4) + (a % 7 - b) * 2"
    assert value(term_of(result), {"a": 100, "b": 5}) == 125 - 6


def test_what_may_be_negative_rounds_down_in_cpp_too() -> None:
    (a, b), _ = sized(a=3, b=10)
    assert spell(term_of((a - b) // 4)) == "floor_div(a - b, 4)"


def test_what_is_asked_of_sizes_is_a_condition() -> None:
    (a, b), conditions = sized(a=10, b=3)
    assert max(a, b) is a
    assert not a < 5
    assert [spell(condition) for condition in conditions] == ["b <= a", "a >= 5"]


def test_numpy_numbers_leave_sizes_what_they_are() -> None:
    (a,), _ = sized(a=10)
    assert spell(term_of(-(-a // np.int64(4)))) == "ceil_div(a, 4)"


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("operator", "implementation"), PAIRS, ids=["/".join(pair) for pair in PAIRS])
def test_plans_of_other_sizes_follow_from_one(operator: str, implementation: str) -> None:
    case, _ = case_of(operator, implementation)
    result, served = followed(operator, implementation), 0
    rng = np.random.default_rng(1)  # other sizes than those that it is made with
    for _ in range(100):
        sizes = {name: size and int(rng.integers(1, 2 * size + 2)) for name, size in own_sizes(case.problem).items()}
        if rng.random() < 0.5:
            sizes |= {name: size for name, size in own_sizes(case.problem).items() if rng.random() < 0.7}
        if result.holds(sizes):
            served += 1
            assert numbers(result.plan, sizes) == numbers(plan(case, sizes), sizes)
    assert served > 5


@pytest.mark.parametrize(("operator", "implementation"), PAIRS, ids=["/".join(pair) for pair in PAIRS])
def test_batches_and_lengths_are_free(operator: str, implementation: str) -> None:
    result = followed(operator, implementation)
    equal = [way.operands for way in result.ways[0] if way.operation == "=="]
    fixed = {size.name for size, number in equal if isinstance(size, Named) and isinstance(number, int)}
    assert fixed <= {"heads", "kv_heads", "page_size"}


def test_sizes_that_a_plan_hides_are_fixed() -> None:
    case, arch = case_of("flash_attention", "mma_sync")

    def hiding(problem: Any, config: Any) -> Plan:
        launch = case.implementation.plan(problem, config).launches[0]
        return Plan((replace(launch, grid=(int(problem.seq_q) // 128 + 1, 1, 1)),), {})

    result = general(replace(case, implementation=replace(case.implementation, plan=hiding)), arch)
    own = own_sizes(case.problem)
    assert result.holds(own)
    assert result.holds({**own, "batch": 7})
    assert not result.holds({**own, "seq_q": own["seq_q"] + 1})


def test_what_the_operator_refuses_is_not_served() -> None:
    case, _ = case_of("flash_attention", "mma_sync")
    result = followed("flash_attention", "mma_sync")
    for sizes in ({"heads": 6, "kv_heads": 4}, {"batch": 0}, {"batch": 1 << 20}, {"seq_k": (1 << 30) + 1}):
        with pytest.raises(TunerError):
            plan(case, {**own_sizes(case.problem), **sizes})
            raise TunerError("more blocks than a grid has") if sizes == {"batch": 1 << 20} else AssertionError(sizes)
        assert not result.holds({**own_sizes(case.problem), **sizes})


def plan(case: Instance, sizes: dict[str, int]) -> Plan:
    return case.at(replace(case.problem, **sizes)).plan()


def numbers(plan: Plan, sizes: dict[str, int]) -> list[int]:
    """Grids, shared memory, workspaces and boxes at these sizes."""
    results = [size for launch in plan.launches for size in (*launch.grid, launch.threads, launch.smem_bytes)]
    results += [size for workspace in plan.workspaces for size in workspace.shape]
    results += [size for tensor_map in plan.maps for size in tensor_map.box]
    return [value(term_of(size), sizes) for size in results]
