"""flash_attention_backward/tcgen05: its space, its kernels on the emulator, and the bugs that the emulator must see."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_right_at_edges, compiled
from tests.support.injected import Bug
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.lint import Lint, lint
from tuner.compiler.render import render
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.operators.flash_attention_backward.tcgen05.config import Config, kv_columns, q_columns
from tuner.operators.flash_attention_backward.tcgen05.work import values_read
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.parameters import scalars

OPERATOR = operators.load("flash_attention_backward")
TCGEN05 = operators.implementation("flash_attention_backward", "tcgen05")
BLACKWELL = ARCHES["sm_100a"]
PASSES = ("flash_attention_backward_dkv", "flash_attention_backward_dq")

BASE = Config(
    BM_kv=32,
    kv_row_tiles=1,
    kv_stages=2,
    kv_polynomial=0,
    BN_q=32,
    q_row_tiles=1,
    q_stages=2,
    q_polynomial=0,
    columns=64,
)
APART = replace(BASE, kv_row_tiles=2, q_row_tiles=2)
# Every tunable away from BASE at least once, and every width of panels.
CASES = {
    16: replace(APART, BM_kv=64, BN_q=64, columns=16),
    40: replace(BASE, BM_kv=48, kv_stages=3, kv_polynomial=4, BN_q=80, columns=32),
    64: replace(APART, BN_q=48, q_stages=4, q_polynomial=3),
    72: replace(BASE, BM_kv=112, BN_q=128, q_polynomial=8, columns=16),
    96: replace(BASE, BM_kv=96, BN_q=64, q_row_tiles=2, columns=32),
    128: replace(BASE, BM_kv=80, kv_stages=4, kv_polynomial=8, BN_q=96, q_stages=3),
    160: replace(BASE, BM_kv=64, BN_q=112, columns=32),
    208: replace(BASE, BN_q=64, q_stages=2, columns=16),
}


def run(problem: Problem, config: Config, mode: Mode, kind: str = "normal", operator: Any = OPERATOR) -> Any:
    drawn = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    arrays = drawn | scalars(OPERATOR, problem, drawn)
    return arrays, *emulator.run(Instance(operator, TCGEN05, problem, config), arrays, mode)


def assert_right(problem: Problem, config: Config, mode: Mode, kind: str = "normal") -> Any:
    assert TCGEN05.space(problem, BLACKWELL).refusal(config) is None
    arrays, outputs, happened = run(problem, config, mode, kind)
    assert not happened.findings, happened.findings[0]
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    assert happened.counters.bank_conflicts == 0
    return outputs


@pytest.mark.parametrize(
    ("problem", "arch", "said"),
    [
        (Problem(), "sm_90a", "sm_90a has no tcgen05"),
        (Problem(head_dim=8), "sm_100a", "head_dim 8"),
        (Problem(dtype=DType.FP32), "sm_100a", "dtype fp32"),
        (Problem(head_dim=216), "sm_100a", "head_dim 216 and head_dim_v 216: dK and dV leave no room for scores"),
    ],
)
def test_what_is_not_served_is_refused_by_value(problem: Problem, arch: str, said: str) -> None:
    assert said in TCGEN05.refusal(problem, ARCHES[arch])


@pytest.mark.parametrize("D", range(16, 209, 8))
def test_every_head_dim_has_a_default_within_a_space_of_many(D: int) -> None:
    problem = Problem(head_dim=D, causal=True)
    space, config = TCGEN05.space(problem, BLACKWELL), TCGEN05.default(problem, BLACKWELL)
    assert TCGEN05.refusal(problem, BLACKWELL) is None
    assert 300 < len(space) < 50_000
    assert space.refusal(config) is None
    assert max(kv_columns(D, D, config), q_columns(D, config)) <= 512


@pytest.mark.parametrize(
    ("D", "config", "reason"),
    [
        (128, replace(BASE, BM_kv=96), "dK, dV, S, dP, P and dS fit tensor memory"),
        (128, replace(BASE, BN_q=64, q_row_tiles=2), "dQ, S, dP and dS fit tensor memory"),
        (128, replace(BASE, BM_kv=80, kv_stages=4, columns=64), None),
        (128, replace(BASE, BN_q=128, q_stages=3), "a block of dQ fits the shared memory of an SM"),
        (72, replace(BASE, BM_kv=112, kv_stages=3), "a block of dK and dV fits the shared memory of an SM"),
        (16, replace(APART, BN_q=80, columns=16), "a thread computes up to 64 columns of a tile"),
        (16, BASE, "a panel no wider than D, or one panel"),
    ],
)
def test_a_config_outside_the_space_is_told_the_reason(D: int, config: Config, reason: str | None) -> None:
    result = TCGEN05.space(Problem(head_dim=D, causal=True), BLACKWELL).refusals(config)
    assert any(reason in entry for entry in result) if reason else not result


@pytest.mark.parametrize("D", CASES)
def test_gradients_are_right_for_every_make_of_tiles(D: int) -> None:
    position = list(CASES).index(D)
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 130, "seq_k": 150}
    problem = Problem(D, DType.FP16 if D % 16 else DType.BF16, bool(position % 2), **sizes)
    assert_right(problem, CASES[D], CHECKED[position // 2 % 2])


@pytest.mark.slow
@pytest.mark.parametrize("config", [BASE, replace(APART, columns=16)], ids=["shared", "apart"])
def test_every_edge_comes_out_right_in_every_order_of_threads(config: Config) -> None:
    assert_right_at_edges(Instance(OPERATOR, TCGEN05, Problem(head_dim=72, causal=True), config), CHECKED)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_hostile_inputs_come_out_right_where_queries_are_more_than_keys(kind: str) -> None:
    problem = Problem(72, causal=True, batch=1, heads=4, kv_heads=2, seq_q=230, seq_k=90)
    assert_right(problem, replace(BASE, kv_polynomial=4, q_polynomial=3), Mode(), kind)


@pytest.mark.parametrize(("D", "DV"), [(192, 128), (72, 40), (64, 128)])
def test_values_may_be_of_another_width(D: int, DV: int) -> None:
    problem = Problem(D, causal=True, head_dim_v=DV, batch=1, heads=2, kv_heads=1, seq_q=140, seq_k=130)
    assert_right(problem, replace(BASE, columns=32), CHECKED[0])


def test_capped_scores_and_gradients_of_lse_come_out_right() -> None:
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 70, "seq_k": 150}
    problem = Problem(40, DType.FP16, True, use_softcap=True, use_lse_gradient=True, **sizes)
    assert_right(problem, CASES[40], CHECKED[1])


@pytest.mark.parametrize(("D", "config"), [(72, BASE), (40, replace(CASES[40], q_row_tiles=2, BN_q=64))])
def test_packed_sequences_come_out_right(D: int, config: Config) -> None:
    problem = Problem(D, causal=D == 72, use_cu_seqlens=True, batch=1, heads=2, seq_q=300, seq_k=260, boundaries=5)
    assert_right(problem, config, CHECKED[D // 8 % 2])


@pytest.mark.slow
def test_a_sequence_beside_one_of_nan_gets_the_bits_that_it_gets_beside_zeros() -> None:
    problem = Problem(40, causal=True, use_cu_seqlens=True, batch=1, heads=1, seq_q=300, seq_k=300, boundaries=4)
    results = []
    for foreign, mode in ((0, Mode()), (np.nan, CHECKED[0])):
        drawn = OPERATOR.inputs(problem, np.random.default_rng(3), "normal")
        arrays = drawn | {name: np.array([0, 90, 170, 300], np.int32) for name in ("cu_seqlens_q", "cu_seqlens_k")}
        for name in ("q", "k", "v", "o", "dout"):
            arrays[name][:, 90:170] = foreign
        outputs, happened = emulator.run(
            Instance(OPERATOR, TCGEN05, problem, BASE), arrays | scalars(OPERATOR, problem, arrays), mode
        )
        assert not happened.findings
        results.append({name: np.delete(outputs[name], slice(90, 170), axis=1) for name in ("dq", "dk", "dv")})
    for name, zeros in results[0].items():
        assert np.isfinite(zeros.astype(np.float32)).all()
        assert np.array_equal(zeros, results[1][name])


def test_gradients_have_the_same_bits_in_every_order_of_threads() -> None:
    problem = Problem(64, causal=True, batch=1, heads=4, kv_heads=2, seq_q=150, seq_k=170)
    first, *others = (run(problem, BASE, mode)[1] for mode in (Mode(), *CHECKED))
    assert all(np.array_equal(first[name], other[name]) for other in others for name in first)


def test_views_of_another_layout_need_no_copy() -> None:
    problem = Problem(40, causal=True, batch=2, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    arrays, dense, _ = run(problem, BASE, Mode())
    names = ("dout", "q", "k", "v", "o")
    views = {name: arrays[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name in names}
    strided, _ = emulator.run(Instance(OPERATOR, TCGEN05, problem, BASE), arrays | views, Mode())
    assert all(np.array_equal(dense[name], strided[name]) for name in ("dq", "dk", "dv"))


PASS, PRODUCTS, ROWS = "tcgen05/pass.cuh", "tcgen05/products.cuh", "tcgen05/rows.cuh"
STORE, BLOCK, LOADER = "tcgen05/store.cuh", "tcgen05/block.cuh", "panels/pass.cuh"
FENCE = "tcgen05_fence_after_thread_sync();\n"
TELL = "    tcgen05_fence_before_thread_sync();\n    __syncwarp();\n    if"
MULTIPLY = "mbarrier_wait(barriers.product_read(kRole, i), index % 2 ^ 1);\n      " + FENCE
SUM = "mbarrier_wait(barriers.operand_full(kRole, i), index % 2);\n      " + FENCE
AWAIT = "barriers.product_full(role, i), parity);\n    " + FENCE
TAKEN = "barriers.operand_taken(role, i), parity ^ 1);\n    " + FENCE
FREE = "  if (own_warp() == Pass::kProductsWarp) tcgen05_dealloc(tensor, Pass::kTensorColumns);\n"
LEAVE = "    leave(kRole, slot, index);\n  }"
SUM_BEGINS = "Major::kK, Major::kMN>();\n"
BUGS = (
    Bug("products_read_too_early", ROWS, "mbarrier_wait(barriers.product_full(role, i), parity);", "", "in_flight"),
    Bug("products_over_what_is_read", PRODUCTS, MULTIPLY, FENCE, "in_flight"),
    Bug("summed_before_it_is_there", PRODUCTS, SUM, FENCE, "race"),
    Bug("p_over_one_that_is_summed", ROWS, "await_sum(kRole);\n", "", "in_flight"),
    Bug("stored_before_the_last_sum", BLOCK, "  thread.await_sum(kFirst);\n", "", "in_flight"),
    Bug("used_before_it_is_loaded", ROWS, "tcgen05_wait_ld();\n    fence_registers(r);", "", "in_flight"),
    Bug("told_before_it_is_stored", ROWS, "tcgen05_wait_st();\n", "", "in_flight"),
    Bug("no_fence_before_telling", ROWS, TELL, "    __syncwarp();\n    if", "tcgen05"),
    Bug("one_lane_tells_for_all", ROWS, TELL, TELL.replace("    __syncwarp();\n", ""), "race"),
    Bug("no_fence_before_products", PRODUCTS, MULTIPLY, MULTIPLY.replace(FENCE, ""), "tcgen05"),
    Bug("no_fence_before_sums", PRODUCTS, SUM, SUM.replace(FENCE, ""), "tcgen05"),
    Bug("no_fence_before_loads", ROWS, AWAIT, AWAIT.replace(FENCE, ""), "tcgen05"),
    Bug("no_fence_behind_the_last_sum", ROWS, TAKEN, TAKEN.replace(FENCE, ""), "tcgen05"),
    Bug("no_wait_for_a_tile", PRODUCTS, "mbarrier_wait(barriers.full(kRole, slot.stage), slot.parity);", "", "race"),
    Bug("no_wait_for_own_rows", PRODUCTS, "mbarrier_wait(barriers.own(i), 0);", ";", "race"),
    Bug("a_tile_left_too_early", PRODUCTS, SUM_BEGINS, SUM_BEGINS + "    leave(kRole, slot, index);\n", "in_flight"),
    Bug("a_tile_is_kept", PRODUCTS, LEAVE, "  }", "deadlock"),
    Bug("a_stage_that_nobody_fills_is_told", PRODUCTS, "if (index + Pass::kStages < count) ", "", "outstanding"),
    Bug(
        "no_wait_for_an_empty_stage",
        LOADER,
        "mbarrier_wait(barriers.empty(role, at.stage), at.parity ^ 1);",
        "",
        "mbarrier",
    ),
    Bug(
        "a_warpgroup_reads_for_both",
        PASS,
        "product_read(role, i), 4 * Pass::kSharers",
        "product_read(role, i), 4",
        "race",
    ),
    Bug(
        "a_warpgroup_writes_for_both",
        PASS,
        "operand_full(role, i), 4 * Pass::kSharers",
        "operand_full(role, i), 4",
        "race",
    ),
    Bug("tensor_memory_is_kept", BLOCK, FREE, "", "tcgen05"),
    Bug(
        "tensor_memory_freed_while_it_is_read",
        BLOCK,
        "  __syncwarp();\n  tcgen05_fence_before_thread_sync();\n  __syncthreads();\n",
        "",
        "tcgen05",
    ),
    Bug("a_warp_reads_lanes_of_another", BLOCK, "uint32_t(warp % 4) << 21", "uint32_t(warp % 4 ^ 1) << 21", "tcgen05"),
    Bug("the_first_sum_adds_to_what_is_there", PRODUCTS, "k > 0 || index > 0", "true", "uninitialized_read"),
    Bug("each_tile_overwrites_the_sum", PRODUCTS, "k > 0 || index > 0", "k > 0", "dk"),
    Bug(
        "operands_of_the_rows_before",
        PRODUCTS,
        "Pass::operand(kRole) + k / 2",
        "Pass::operand(kRole) + (k ^ 16) / 2",
        "dk",
    ),
    Bug(
        "halves_change_places",
        ROWS,
        "Pass::operand(kRole) + first / 2 + e",
        "Pass::operand(kRole) + (Pass::kTile - N - first) / 2 + e",
        "dk",
    ),
    Bug(
        "fewer_scores_than_a_tile",
        PRODUCTS,
        "tcgen05_instruction<T, N>()",
        "tcgen05_instruction<T, N - 16>()",
        "uninitialized_read",
    ),
    Bug("shift_taken_for_delta", ROWS, "kind * Pass::kTile + first", "first", "dk"),
    Bug("values_of_the_first_head_for_all", LOADER, ", g_values += head_values", "", "dk"),
    Bug("no_proxy_fence_before_the_store", STORE, "  fence_proxy_async();\n", "", "proxy_fence"),
    Bug(
        "no_barrier_before_the_store", STORE, "  named_barrier_sync(1 + thread.i, kRows * Pass::kSharers);", "", "race"
    ),
    Bug("no_wait_for_the_store", STORE, "  cp_async_bulk_wait_read<0>();\n", "", "outstanding"),
    Bug("a_query_before_the_diagonal", ROWS, "bound = row - reach;", "bound = row - reach - 1;", "dk"),
    Bug(
        "a_key_behind_the_diagonal",
        ROWS,
        "row + reach + 1) : seq_k;\n      whole",
        "row + reach + 2) : seq_k;\n      whole",
        "dq",
    ),
    Bug("the_diagonal_is_not_masked", ROWS, "first + 31 - reach", "first - reach", "dk"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_a_kernel_is_seen(bug: Bug, tmp_path: Path) -> None:
    problem = Problem(head_dim=72, causal=True, batch=1, heads=2, kv_heads=1, seq_q=150, seq_k=170)
    arrays, outputs, happened = run(problem, bug.config or BASE, CHECKED[0], operator=bug.put_into(OPERATOR, tmp_path))
    wrong = {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}
    assert bug.seen in wrong | {finding.kind for finding in happened.findings}


# Where a block of queries attends no key, nobody multiplies.
IDLE = (
    Bug("zeros_before_own_rows_have_come", BLOCK, "    mbarrier_wait(barriers.own(i), 0);\n", "", "in_flight"),
    Bug("a_sum_of_nothing_is_read", STORE, "if (summed) {", "{", "uninitialized_read"),
)


@pytest.mark.parametrize("bug", IDLE, ids=lambda bug: bug.name)
def test_a_bug_without_products_is_seen(bug: Bug, tmp_path: Path) -> None:
    problem = Problem(head_dim=40, causal=True, batch=1, heads=1, seq_q=200, seq_k=40)
    assert_right(problem, replace(BASE, columns=32), CHECKED[0])
    operator = bug.put_into(OPERATOR, tmp_path)
    _, _, happened = run(problem, replace(BASE, columns=32), CHECKED[0], operator=operator)
    assert bug.seen in {finding.kind for finding in happened.findings}


@pytest.mark.parametrize("D", [40, 96, 160])
@pytest.mark.parametrize("causal", [False, True])
def test_declared_work_is_what_the_emulator_counts(D: int, causal: bool) -> None:
    problem = Problem(head_dim=D, causal=causal, batch=2, heads=2, kv_heads=1, seq_q=130, seq_k=200)
    counted = run(problem, CASES[D], Mode())[2].counters
    _, *passes = TCGEN05.work(problem, CASES[D], gpu("B200"))
    _, *launches = TCGEN05.plan(problem, CASES[D]).launches
    plain = values_read(CASES[D]) * 128 * CASES[D].q_row_tiles * passes[1].ctas  # shifts and deltas of own queries
    assert sum(work.tcgen05 for work in passes) == counted.tcgen05_m16n8k16
    assert sum(work.l2_bytes for work in passes) - plain == counted.bulk_bytes
    assert sum(work.barriers for work in passes) == counted.barriers
    together = zip(launches, passes, strict=True)
    assert sum(launch.tensor_columns * work.ctas for launch, work in together) == counted.tensor_columns


def test_the_products_of_both_passes_are_seven_where_the_mathematics_needs_five() -> None:
    problem = Problem(head_dim=64, batch=1, heads=1, seq_q=1536)
    result = TCGEN05.work(problem, TCGEN05.default(problem, BLACKWELL), gpu("B200"))
    assert sum(work.tcgen05 for work in result) * 4096 / OPERATOR.cost(problem).flops == pytest.approx(7 / 5, rel=0.05)


@pytest.mark.parametrize("D", [40, 72, 128, 208])
@pytest.mark.slow
def test_defaults_spill_nothing_and_pass_the_lint(D: int) -> None:
    """What a thread keeps besides differs most between these two problems."""
    problem = Problem(head_dim=D, causal=D % 16 == 8, use_softcap=D == 128, use_cu_seqlens=D == 72, batch=1)
    cubin = compiled(render(Instance.default(OPERATOR, TCGEN05, problem, BLACKWELL)), "sm_100a")
    assert not any(usage.spills for usage in cubin.entries.values())
    assert [lint(cubin, entry) for entry in PASSES] == [Lint(), Lint()]
