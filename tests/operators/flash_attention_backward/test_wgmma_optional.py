"""flash_attention_backward/wgmma on packed sequences, whose neighbours must not be seen, and with capped scores."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention_backward.test_wgmma import (
    BASE,
    CASES,
    HOPPER,
    OPERATOR,
    PASSES,
    SPLIT,
    WGMMA,
    Bug,
    run,
)
from tests.support.claims import compiled
from tests.support.injected import injected
from tuner.arch import gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.lint import lint
from tuner.compiler.render import render
from tuner.evaluate.check.checker import CHECKED, Job, check
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention import operator as forward
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.parameters import scalars
from tuner.spec.problem import to_fields

CAPPED = Problem(64, causal=True, use_softcap=True)


def test_gradients_of_capped_scores_are_right() -> None:
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 70, "seq_k": 90}
    problem = Problem(40, DType.FP16, True, use_softcap=True, **sizes)
    arrays, outputs, happened = run(problem, CASES[40], CHECKED[0])
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    assert happened.counters.bank_conflicts == 0


def test_capped_scores_leave_room_for_smaller_tiles() -> None:
    largest = replace(BASE, BM_kv=96)
    assert WGMMA.space(replace(CAPPED, use_softcap=False), HOPPER).refusal(largest) is None
    assert WGMMA.space(CAPPED, HOPPER).refusal(largest) == "sums, scores and products of dK and dV fit the registers"


@pytest.mark.slow
def test_the_default_for_capped_scores_compiles_clean() -> None:
    cubin = compiled(render(Instance.default(OPERATOR, WGMMA, CAPPED, HOPPER)), "sm_90a")
    assert [lint(cubin, entry).failures for entry in PASSES] == [(), ()]


def test_a_cap_costs_special_functions_and_no_product() -> None:
    config, plain = WGMMA.default(CAPPED, HOPPER), replace(CAPPED, use_softcap=False)
    pairs = zip(WGMMA.work(CAPPED, config, gpu("H200")), WGMMA.work(plain, config, gpu("H200")), strict=True)
    _, *passes = pairs
    assert len(passes) == 2
    for capped, free in passes:
        assert capped.wgmma == free.wgmma and capped.dram_bytes == free.dram_bytes
        assert capped.mufu - free.mufu >= free.mufu  # a tanh a score: an exponential and at least half a reciprocal


PACKED = Problem(40, causal=True, use_cu_seqlens=True, batch=1, heads=2, kv_heads=1, seq_q=300, seq_k=350, boundaries=4)
BOUNDS = {"cu_seqlens_q": (0, 70, 230, 300), "cu_seqlens_k": (0, 37, 200, 350)}
CONFIG = replace(CASES[40], BM_kv=32)


def with_neighbour(value: float) -> Any:
    """Packed sequences of which the one in the middle holds nothing but `value`, and o and lse of them all."""
    arrays = OPERATOR.inputs(PACKED, np.random.default_rng(0), "normal")
    arrays |= {name: np.array(bounds, np.int32) for name, bounds in BOUNDS.items()}
    arrays["q"][:, 70:230] = arrays["k"][:, 37:200] = arrays["v"][:, 37:200] = arrays["dout"][:, 70:230] = value
    result = forward.rounded(PACKED, arrays)
    arrays |= {"o": result["o"].astype(arrays["o"].dtype), "lse": result["lse"].astype(np.float32)}
    return arrays | scalars(OPERATOR, PACKED, arrays)


def gradients(arrays: Any, mode: Mode, operator: Any = OPERATOR) -> tuple[Any, Any]:
    return emulator.run(Instance(operator, WGMMA, PACKED, CONFIG), arrays, mode)


def changed(outputs: Any, others: Any) -> set[str]:
    """Gradients of the first and the last packed sequence of which not all bits are the same."""
    keys = np.r_[0:37, 200:350]
    own = {"dq": np.r_[0:70, 230:300], "dk": keys, "dv": keys}
    pairs = {name: [arrays[name].take(rows, 1) for arrays in (outputs, others)] for name, rows in own.items()}
    return {name for name, (one, other) in pairs.items() if one.tobytes() != other.tobytes()}


def test_a_packed_sequence_has_its_gradients_and_none_of_the_nan_in_the_next() -> None:
    beside_zeros = with_neighbour(0)
    outputs, _ = gradients(beside_zeros, Mode())
    assert all(error.ok for error in errors(OPERATOR, PACKED, beside_zeros, outputs))
    beside_nan, happened = gradients(with_neighbour(np.nan), CHECKED[0])
    assert not happened.findings
    assert changed(outputs, beside_nan) == set()


def test_packed_sequences_of_any_lengths_have_right_gradients_with_capped_scores() -> None:
    problem = Problem(104, causal=True, use_cu_seqlens=True, use_softcap=True, batch=1)
    fields = to_fields(problem), to_fields(SPLIT)
    verdict = check(Job(InstanceFields("flash_attention_backward", "wgmma", *fields), CHECKED[:1]))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("bounds", [(-30, 40, 40, 2**31 - 1), (300, 40, 10, 5), (400, 500, 600, 700)])
def test_boundaries_that_lie_stay_within_the_tensors(bounds: tuple[int, ...]) -> None:
    arrays = with_neighbour(0) | {name: np.array(bounds, np.int32) for name in BOUNDS}
    _, happened = gradients(arrays, CHECKED[0])
    assert {finding.kind for finding in happened.findings} <= {"uninitialized"}


PASS, STORE, FENCED = "panels/pass.cuh", "panels/store.cuh", "    fence_proxy_async();\n    __syncwarp();"
BUGS = (
    Bug("zeros_that_wgmma_may_not_see", PASS, FENCED, "    __syncwarp();", "proxy_fence"),
    Bug("the_next_sequence_is_stored_over", STORE, "Pass::kPacked && row + 64 > target.rows", "false", "dk"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_what_packed_sequences_need_is_seen(bug: Bug, tmp_path: Path) -> None:
    right, _ = gradients(with_neighbour(0), Mode())
    outputs, happened = gradients(
        with_neighbour(np.nan), CHECKED[0], injected(OPERATOR, tmp_path, bug.file, bug.old, bug.new)
    )
    assert bug.seen in changed(right, outputs) | {finding.kind for finding in happened.findings}


def test_packed_sequences_of_equal_lengths_do_the_declared_products() -> None:
    problem = replace(PACKED, seq_q=384, seq_k=384, causal=False)
    bounds = {name: np.arange(0, 512, 128, np.int32) for name in BOUNDS}
    drawn = OPERATOR.inputs(problem, np.random.default_rng(0), "normal") | bounds
    instance = Instance(OPERATOR, WGMMA, problem, CONFIG)
    _, happened = emulator.run(instance, drawn | scalars(OPERATOR, problem, drawn), Mode())
    work = instance.work(gpu("H200"))
    assert sum(launch_work.wgmma for launch_work in work) == happened.counters.wgmma_m16n8k16
    _, *launches = instance.plan().launches
    assert [launch_work.ctas for launch_work in work[1:]] == [math.prod(launch.grid) for launch in launches]
