"""flash_attention_backward/wgmma_once: one pass whose blocks add to dQ in turn, with the same bits in any order."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.claims import compiled, compiled_to_ptx
from tests.support.injected import Bug
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator, ptx
from tuner.backends.emulator import Mode
from tuner.compiler.lint import Lint, lint
from tuner.compiler.render import render
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.operators.flash_attention_backward.wgmma_once.config import Config
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.parameters import scalars

OPERATOR = operators.load("flash_attention_backward")
FORWARD = operators.load("flash_attention")
ONCE = operators.implementation("flash_attention_backward", "wgmma_once")
HOPPER = ARCHES["sm_90a"]
KERNEL = "flash_attention_backward_once"
# Every tunable and every width of panels; PACKED has the widest head that it may.
CASES = {40: Config(4, 1, 2, 16), 96: Config(2, 2, 1, 32), 128: Config(2, 1, 0, 64)}
PACKED = Problem(
    112, causal=True, use_cu_seqlens=True, batch=1, heads=2, kv_heads=1, seq_q=140, seq_k=300, boundaries=4
)
BOUNDS = {"cu_seqlens_q": (0, 30, 100, 140), "cu_seqlens_k": (0, 37, 100, 300)}


def sized(D: int, *, causal: bool, heads: int = 2, seq_q: int = 70, seq_k: int = 300) -> Problem:
    dtype = DType.FP16 if D % 16 else DType.BF16
    return Problem(D, dtype, causal, head_dim_v=D, batch=1, heads=heads, kv_heads=1, seq_q=seq_q, seq_k=seq_k)


def inputs(problem: Problem, kind: str = "normal") -> Any:
    drawn = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return drawn | scalars(OPERATOR, problem, drawn)


def far_apart(problem: Problem) -> Any:
    """Every score is far below 0, which is that of a key that there is none of: its exponential is no fp16."""
    arrays = inputs(problem)
    arrays["q"], arrays["k"] = np.full_like(arrays["q"], 3), arrays["k"] * arrays["k"].dtype.type(0.1) - 3
    return arrays | {
        name: array.astype(arrays[name].dtype) for name, array in FORWARD.reference(problem, arrays).items()
    }


def run(problem: Problem, config: Config, mode: Mode, arrays: Any, operator: Any = OPERATOR) -> Any:
    """(names of wrong outputs, outputs, what happened)."""
    outputs, happened = emulator.run(Instance(operator, ONCE, problem, config), arrays, mode)
    return {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}, outputs, happened


@pytest.mark.parametrize(
    ("problem", "arch", "reason"),
    [
        (Problem(), "sm_120a", "sm_120a has no wgmma"),
        (Problem(head_dim=8, head_dim_v=8), "sm_90a", "the narrowest tile has 16 columns"),
        (
            Problem(head_dim=136, head_dim_v=136),
            "sm_90a",
            "sums of dK and dV leave no registers for scores; use wgmma",
        ),
        (Problem(dtype=DType.FP32), "sm_90a", "operands"),
        (Problem(head_dim=64, head_dim_v=128), "sm_90a", "head_dim_v 128"),
        (Problem(head_dim=120, head_dim_v=120, use_cu_seqlens=True, batch=1), "sm_90a", "head_dim 120: sums of dK"),
        (Problem(use_softcap=True), "sm_90a", "use wgmma"),
    ],
)
def test_what_it_does_not_serve_is_refused_by_value(problem: Problem, arch: str, reason: str) -> None:
    assert reason in ONCE.refusal(problem, ARCHES[arch])


@pytest.mark.parametrize("D", range(16, 129, 8))
def test_every_head_dim_to_128_has_a_default_within_its_space(D: int) -> None:
    problem = Problem(head_dim=D, head_dim_v=D)
    assert ONCE.refusal(problem, HOPPER) is None
    assert ONCE.space(problem, HOPPER).refusal(ONCE.default(problem, HOPPER)) is None


@pytest.mark.parametrize("D", [40, 96])
def test_gradients_are_right_and_the_counters_say_what_is_declared(D: int) -> None:
    problem, position = sized(D, causal=D == 40), list(CASES).index(D)
    assert ONCE.space(problem, HOPPER).refusal(CASES[D]) is None
    wrong, _, happened = run(problem, CASES[D], CHECKED[position % 2], inputs(problem))
    assert (wrong, happened.findings) == (set(), ())
    assert happened.counters.bank_conflicts == 0
    _, once, _ = ONCE.work(problem, CASES[D], gpu("H200"))
    assert once.wgmma == happened.counters.wgmma_m16n8k16
    assert once.l2_bytes == happened.counters.bulk_bytes


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_hostile_inputs_come_out_right_where_queries_attend_no_key(kind: str) -> None:
    problem = sized(40, causal=True, heads=1, seq_q=200, seq_k=70)
    wrong, _, happened = run(problem, CASES[40], replace(CHECKED[0], schedule="reverse"), inputs(problem, kind))
    assert (wrong, happened.findings) == (set(), ())


def test_keys_that_there_are_none_of_reach_no_gradient() -> None:
    problem = sized(40, causal=False, heads=1)
    wrong, _, happened = run(problem, CASES[40], CHECKED[0], far_apart(problem))
    assert (wrong, happened.findings) == (set(), ())


def test_the_bits_are_the_same_in_whatever_order_blocks_run() -> None:
    problem = sized(40, causal=True)
    modes = [Mode(True), *(Mode(True, "random", "random", seed) for seed in range(2))]
    first, *others = (run(problem, CASES[40], mode, inputs(problem))[1]["dq"] for mode in modes)
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_a_few_resident_blocks_are_enough_for_all_to_have_their_turn() -> None:
    """The machine for PTX runs five such blocks side by side, and no other one before these are done."""
    problem = sized(40, causal=False, heads=1, seq_q=70, seq_k=7 * 128)
    assert ONCE.plan(problem, CASES[40]).launches[1].grid == (7, 1, 1)
    text = compiled_to_ptx(render(Instance(OPERATOR, ONCE, problem, CASES[40])), "sm_90a")
    arrays = inputs(problem)
    result, _ = ptx.run(Instance(OPERATOR, ONCE, problem, CASES[40]), ptx.parse(text), arrays)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, result))


PARTS, SUMS, KERNELS = "wgmma_once/parts.cuh", "wgmma_once/sums.cuh", "wgmma_once/kernel.cu.jinja"
BUGS = (
    Bug("nobody_waits_for_his_turn", PARTS, "while (load_acquire(g_turns + tile) != turn) backoff();", ";", "race"),
    Bug("a_part_is_written_over_before_it_was_taken", PARTS, "  exchange.parts.wait_empty(number);\n", "", "race"),
    Bug(
        "dk_is_stored_over_keys_that_dq_needs", KERNELS, "    named_barrier_sync(3, Once::kConsumers);", "   ;", "race"
    ),
    Bug("keys_past_the_end_reach_dq", SUMS, "  if (row + 64 > seq_k) sight.whole = kNone;\n", "", "dq"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_the_kernel_is_seen(bug: Bug, tmp_path: Path) -> None:
    problem = sized(40, causal=False, heads=1)
    wrong, _, happened = run(problem, CASES[40], CHECKED[0], far_apart(problem), bug.put_into(OPERATOR, tmp_path))
    assert bug.seen in wrong | {finding.kind for finding in happened.findings}


def test_heads_that_do_not_begin_together_come_out_right(tmp_path: Path) -> None:
    """Five heads in sections of two, where so few queries are said to fit L2."""
    problem = replace(sized(40, causal=True, heads=5, seq_q=70, seq_k=150), kv_heads=5)
    small = Bug("little_L2", KERNELS, "(24 << 20) / (8 * kHeadDim)", "150", "")
    wrong, _, happened = run(problem, CASES[40], CHECKED[0], inputs(problem), small.put_into(OPERATOR, tmp_path))
    assert (wrong, happened.findings) == (set(), ())


def beside(value: float) -> Any:
    """Packed sequences of which the one in the middle holds nothing but `value`."""
    arrays = inputs(PACKED) | {name: np.array(bounds, np.int32) for name, bounds in BOUNDS.items()}
    arrays["q"][:, 30:100] = arrays["k"][:, 37:100] = arrays["v"][:, 37:100] = arrays["dout"][:, 30:100] = value
    result = FORWARD.rounded(PACKED, arrays)
    return arrays | {name: result[name].astype(arrays[name].dtype) for name in ("o", "lse")}


@cache
def beside_zeros() -> Any:
    wrong, outputs, happened = run(PACKED, CASES[128], CHECKED[0], beside(0))
    assert (wrong, happened.findings) == (set(), ())
    return outputs


def changed_beside_nan(operator: Any = OPERATOR) -> tuple[set[str], Any]:
    """(gradients of the first and the last packed sequence that the NaN between them changes, the findings)."""
    right = beside_zeros()
    result, happened = emulator.run(Instance(operator, ONCE, PACKED, CASES[128]), beside(np.nan), CHECKED[1])
    keys = np.r_[0:37, 100:300]
    own = {"dq": np.r_[0:30, 100:140], "dk": keys, "dv": keys}
    same = {name for name, rows in own.items() if np.array_equal(right[name].take(rows, 1), result[name].take(rows, 1))}
    return set(own) - same, happened.findings


def test_a_packed_sequence_has_its_gradients_and_none_of_the_nan_in_the_next() -> None:
    assert changed_beside_nan() == (set(), ())


def test_a_packed_sequence_that_keeps_keys_of_the_next_is_seen(tmp_path: Path) -> None:
    kept = Bug(
        "", "wgmma_once/pass.cuh", "    if (other != tile) clear<kRows>(s_block + other, max(left, 0));\n", "", "dq"
    )
    assert kept.seen in changed_beside_nan(kept.put_into(OPERATOR, tmp_path))[0]


@pytest.mark.parametrize("bounds", [(-200, 300, 300, 300), (0, 140, 40, 2**31 - 1), (140, 40, 10, 5)])
def test_nobody_waits_for_ever_where_boundaries_lie(bounds: tuple[int, ...]) -> None:
    arrays = beside(0) | {name: np.array(bounds, np.int32) for name in BOUNDS}
    _, happened = emulator.run(Instance(OPERATOR, ONCE, PACKED, CASES[128]), arrays, CHECKED[0])
    assert {finding.kind for finding in happened.findings} <= {"race", "uninitialized_read"}


def test_packed_sequences_of_equal_lengths_do_the_declared_products() -> None:
    problem = replace(PACKED, seq_q=192, seq_k=384)
    bounds = {"cu_seqlens_q": np.arange(0, 256, 64), "cu_seqlens_k": np.arange(0, 512, 128)}
    arrays = inputs(problem) | {name: bound.astype(np.int32) for name, bound in bounds.items()}
    _, _, happened = run(problem, CASES[128], CHECKED[0], arrays)
    _, once, _ = ONCE.work(problem, CASES[128], gpu("H200"))
    assert once.wgmma == happened.counters.wgmma_m16n8k16
    assert once.ctas == ONCE.plan(problem, CASES[128]).launches[1].grid[0]


def test_it_multiplies_as_often_as_the_mathematics_asks() -> None:
    problem = Problem(head_dim=64, head_dim_v=64, batch=1, heads=1, seq_q=1536)
    work = ONCE.work(problem, ONCE.default(problem, HOPPER), gpu("H200"))
    assert sum(launch_work.wgmma for launch_work in work) * 4096 == OPERATOR.cost(problem).flops


@pytest.mark.slow
def test_defaults_pass_the_lint() -> None:
    """`python benchmarks/toolkits.py --configs 12` checks every head_dim and more configs."""
    for problem in _asked():
        assert lint(compiled(render(Instance.default(OPERATOR, ONCE, problem, HOPPER)), "sm_90a"), KERNEL) == Lint()


def _asked() -> Iterator[Problem]:
    for D in (64, 72, 96, 128):
        yield Problem(head_dim=D, head_dim_v=D, causal=D != 128, use_cu_seqlens=D == 96, batch=1, kv_heads=4)
