"""flash_attention: its mathematics, its space, and its kernels on the emulator and through NVRTC."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.operators.small_tiles import SMALL_TILES
from tests.support.claims import assert_no_spills, compiled
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.render import render
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED, PLAIN, Job, check
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention.mma_sync.config import Config
from tuner.operators.flash_attention.mma_sync.work import chunk_offset
from tuner.operators.flash_attention.operator import Problem, flash_attention, visible_keys
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields

OPERATOR = operators.load("flash_attention")
NAIVE = operators.implementation("flash_attention", "naive")
MMA_SYNC = operators.implementation("flash_attention", "mma_sync")
HEAD_DIMS = (40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256)

BASE = Config(**SMALL_TILES, heavy_first=False)
# Every tunable away from BASE at least once, on head_dims with and without a tail of 8 and with every swizzle.
CASES = {
    "d8_padded_three_stages": (8, replace(BASE, swizzle=False, stages=3)),
    "d40_query_in_registers": (40, replace(BASE, q_in_registers=True, BN=48)),
    "d48_query_through_the_ring": (48, replace(BASE, q_in_registers=True, smem_budget=6144, lazy_rescale=True)),
    "d72_32_rows_a_warp": (72, replace(BASE, BM=128, BN=80, lazy_rescale=True, heavy_first=True)),
    "d96_padded": (96, replace(BASE, swizzle=False, BN=64, stages=4)),
    "d128_two_warps_share_rows": (128, replace(BASE, BN=64, d_warps=2, lazy_rescale=True)),
    "d160_shared_and_in_registers": (160, replace(BASE, d_warps=2, q_in_registers=True, heavy_first=True)),
    "d192_four_warps_share_rows": (192, replace(BASE, BM=32, BN=64, warps=8, d_warps=4, stages=3)),
    "d256_padded": (256, replace(BASE, swizzle=False, BM=32, warps=2)),
}


def run(implementation: Any, problem: Problem, config: Any, mode: Mode, kind: str = "normal") -> Any:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *emulator.run(Instance(OPERATOR, implementation, problem, config), arrays, mode)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("head_dim", 7),
        ("head_dim", 264),
        ("head_dim_v", 12),
        ("dtype", DType.INT32),
        ("batch", 0),
        ("seq_k", -1),
        ("kv_heads", 3),
    ],
)
def test_a_wrong_size_is_refused_by_name_and_value(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{field} {getattr(value, 'value', value)}"):
        Problem(**{field: value})


def test_kv_heads_and_keys_follow_heads_and_queries_unless_given() -> None:
    problem = Problem(heads=6, seq_q=100)
    assert (problem.kv_heads, problem.seq_k) == (6, 100)


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_agrees_with_the_definition_key_by_key(causal: bool) -> None:
    problem = Problem(head_dim=8, causal=causal, batch=2, heads=4, kv_heads=2, seq_q=5, seq_k=3)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(1), "normal")
    outputs = OPERATOR.reference(problem, arrays)
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    for b, t, h in product(range(2), range(5), range(4)):
        keys = [j for j in range(3) if not causal or j <= t + 3 - 5]
        weights = np.array([np.exp(8**-0.5 * (q[b, t, h] @ k[b, j, h // 2])) for j in keys])
        expected = sum((w * v[b, j, h // 2] for w, j in zip(weights, keys, strict=True)), np.zeros(8))
        np.testing.assert_allclose(outputs["o"][b, t, h], expected / weights.sum() if keys else 0)
        assert outputs["lse"][b, h, t] == pytest.approx(np.log(weights.sum()) if keys else -np.inf)


def test_results_over_parts_of_the_keys_merge_by_their_lse() -> None:
    whole = Problem(head_dim=16, batch=1, heads=1, seq_q=4, seq_k=10)
    arrays = OPERATOR.inputs(whole, np.random.default_rng(2), "normal")
    parts = []
    for keys in (slice(0, 3), slice(3, 10)):
        cut = arrays | {"k": arrays["k"][:, keys], "v": arrays["v"][:, keys]}
        parts.append(OPERATOR.reference(replace(whole, seq_k=keys.stop - keys.start), cut))
    lse = np.logaddexp(parts[0]["lse"], parts[1]["lse"])
    merged = sum(np.exp(part["lse"] - lse).transpose(0, 2, 1)[..., None] * part["o"] for part in parts)
    np.testing.assert_allclose(merged, OPERATOR.reference(whole, arrays)["o"])


def test_the_floor_counts_attended_pairs_and_every_tensor_once() -> None:
    cost = OPERATOR.cost(Problem(head_dim=64, causal=True, batch=2, heads=4, kv_heads=2, seq_q=3, seq_k=5))
    assert cost.flops == 4 * 64 * (2 * 4) * (3 + 4 + 5)
    assert cost.bytes == 2 * 64 * 2 * (2 * 3 * 4 + 2 * 5 * 2) + 4 * (2 * 4 * 3)


def test_the_call_finds_heads_behind_positions_or_before_them() -> None:
    assert flash_attention(1, 2, 3).axes["q"] == (0, 1, 2, 3)
    assert flash_attention(1, 2, 3, layout="bhtd").axes["o"] == (0, 2, 1, 3)


@pytest.mark.parametrize("wrong", [{"layout": "tbhd"}, {"softmax_scale": 0.0}, {"softmax_scale": float("nan")}])
def test_the_call_refuses_what_it_does_not_know(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(wrong)))):
        flash_attention(1, 2, 3, **wrong)


@pytest.mark.parametrize("D", range(8, 257, 8))
def test_every_head_dim_has_over_a_hundred_configs_on_every_arch(D: int) -> None:
    sizes = [len(MMA_SYNC.space(Problem(head_dim=D, causal=True), arch)) for arch in ARCHES.values()]
    assert min(sizes) > 100 and max(sizes) < 10_000


@pytest.mark.parametrize("D", range(8, 257, 8))
@pytest.mark.parametrize("swizzle", [True, False])
def test_chunks_are_distinct_and_eight_rows_never_meet_in_a_bank(D: int, swizzle: bool) -> None:
    row, chunk = np.meshgrid(np.arange(64), np.arange(D // 8), indexing="ij")
    offset = chunk_offset(D, swizzle, row, chunk)
    assert len(np.unique(offset)) == offset.size
    columns = np.sort((offset // 16 % 8).reshape(8, 8, -1), axis=1)  # [8 rows each, row, chunk]
    assert (columns == np.arange(8)[:, None]).all()


@pytest.mark.parametrize("D", HEAD_DIMS)
def test_swizzled_tiles_hold_nothing_but_their_elements(D: int) -> None:
    launch = MMA_SYNC.plan(Problem(head_dim=D), replace(BASE, BM=128, BN=64, stages=2)).launches[0]
    assert launch.smem_bytes == 2 * D * (128 + 2 * 64)


def test_a_grid_that_cannot_launch_is_refused() -> None:
    assert "65536" in MMA_SYNC.refusal(Problem(batch=65536, seq_q=1), ARCHES["sm_80"])


@pytest.mark.parametrize(("i", "D"), list(enumerate(D for D in HEAD_DIMS for _ in range(2))))
@pytest.mark.slow
def test_defaults_never_spill(i: int, D: int) -> None:
    """Every head_dim on two arches; arches, dtypes and masks are dealt out. sm_86 and sm_89 get the code of sm_80."""
    problem = Problem(head_dim=D, dtype=(DType.BF16, DType.FP16)[i // 4 % 2], causal=bool(i % 2))
    arch = ("sm_80", "sm_90a", "sm_100a", "sm_120a")[(i + i // 4) % 4]
    assert_no_spills(OPERATOR, MMA_SYNC, problem, arch)


@pytest.mark.slow
def test_configs_drawn_from_the_space_compile_for_their_arch() -> None:
    rng = np.random.default_rng(3)
    for D, arch in product((72, 128, 256), ("sm_86", "sm_120a")):
        problem = Problem(head_dim=D, causal=True)
        space = MMA_SYNC.space(problem, ARCHES[arch])
        config = space[int(rng.integers(len(space)))]
        assert compiled(render(Instance(OPERATOR, MMA_SYNC, problem, config)), arch).entries


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_addresses_are_not_computed_again_for_every_tile(arch: str) -> None:
    """With 64-bit multiplications for the thread's place in every copy, IMAD and LEA alone were 100."""
    problem = Problem(head_dim=64)
    source = render(Instance.default(OPERATOR, MMA_SYNC, problem, ARCHES[arch]))
    loops = compiled(source, arch).innermost_loops("flash_attention_mma_sync")
    (loop,) = (loop for loop in loops if loop.mix.get("HMMA.16816"))
    assert loop.mix["HMMA.16816"] == 128
    assert loop.mix.get("IMAD", 0) + loop.mix.get("LEA", 0) < 40


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_gives_the_right_result(case: str) -> None:
    D, config = CASES[case]
    dtype = DType.FP16 if D % 16 else DType.BF16
    for causal in (False, True):
        problem = to_fields(Problem(head_dim=D, dtype=dtype, causal=causal))
        modes = PLAIN if causal else PLAIN + CHECKED
        verdict = check(Job(InstanceFields("flash_attention", "mma_sync", problem, to_fields(config)), modes))
        assert verdict.ok, verdict.reason


@pytest.mark.parametrize("D", [8, 72])
def test_the_naive_kernel_is_right(D: int) -> None:
    problem = Problem(head_dim=D, dtype=DType.FP16, causal=True)
    config = to_fields(NAIVE.default(problem, ARCHES["sm_80"]))
    verdict = check(Job(InstanceFields("flash_attention", "naive", to_fields(problem), config), PLAIN))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
@pytest.mark.parametrize("causal", [False, True])
def test_hostile_inputs_come_out_right_with_lazy_scaling(kind: str, causal: bool) -> None:
    problem = Problem(head_dim=72, causal=causal, batch=1, heads=2, kv_heads=1, seq_q=70, seq_k=150)
    arrays, outputs, happened = run(MMA_SYNC, problem, CASES["d72_32_rows_a_warp"][1], Mode(), kind)
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize("name", ["naive", "mma_sync", "split_keys", "wgmma"])
def test_scores_far_below_zero_still_share_their_keys(name: str) -> None:
    """The maximum that a row begins with is below them all the same."""
    problem = Problem(head_dim=16, causal=True, batch=1, heads=1, seq_q=20, seq_k=20)
    kernel = operators.implementation("flash_attention", name)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "normal")
    arrays["q"][:], arrays["k"][:] = 256, -256  # scores of -2^18
    config = kernel.default(problem, ARCHES["sm_90a"])
    outputs, happened = emulator.run(Instance(OPERATOR, kernel, problem, config), arrays, Mode())
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_both_kernels_agree_more_closely_than_with_float64() -> None:
    problem = Problem(head_dim=80, batch=1, heads=1, seq_q=33, seq_k=65)
    _, fast, _ = run(MMA_SYNC, problem, BASE, Mode())
    arrays, plain, _ = run(NAIVE, problem, NAIVE.default(problem, ARCHES["sm_80"]), Mode())
    exact = OPERATOR.reference(problem, arrays)
    assert np.max(np.abs(fast["lse"] - plain["lse"])) < 2e-6
    assert np.linalg.norm(fast["o"].astype(float) - plain["o"]) < np.linalg.norm(plain["o"] - exact["o"]) * 2


def test_views_of_another_layout_need_no_copy() -> None:
    problem = Problem(head_dim=40, causal=True, batch=2, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(5), "normal")
    views = arrays | {name: arrays[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name in "qkv"}
    dense, _ = emulator.run(Instance(OPERATOR, MMA_SYNC, problem, BASE), arrays, Mode())
    strided, _ = emulator.run(Instance(OPERATOR, MMA_SYNC, problem, BASE), views, Mode())
    assert views["q"].strides != arrays["q"].strides
    assert np.array_equal(dense["o"], strided["o"])


@pytest.mark.parametrize("case", ["d8_padded_three_stages", "d72_32_rows_a_warp", "d160_shared_and_in_registers"])
@pytest.mark.parametrize("causal", [False, True])
def test_declared_work_is_what_the_emulator_counts(case: str, causal: bool) -> None:
    D, config = CASES[case]
    for problem in OPERATOR.tails(Problem(head_dim=D, causal=causal)):
        _, _, happened = run(MMA_SYNC, problem, config, Mode(checked=True))
        (work,), counted = MMA_SYNC.work(problem, config, gpu("sm_90a")), happened.counters
        assert work.mma == counted.mma_m16n8k16 + counted.mma_m16n8k8 / 2
        assert work.l2_bytes == counted.global_read_bytes + counted.global_write_bytes
        assert counted.bank_conflicts == 0
        named = counted.barriers - work.barriers
        assert named == 0 if config.d_warps == 1 else named > 0


def test_tiles_are_exact_so_that_mma_grow_with_head_dim_alone() -> None:
    mma = {D: MMA_SYNC.work(Problem(head_dim=D), BASE, gpu("sm_90a"))[0].mma for D in range(8, 257, 8)}
    assert all(mma[D] == D / 8 * mma[8] for D in mma)
    assert 4096 * mma[72] == OPERATOR.cost(Problem(head_dim=72)).flops


def test_causal_tiles_without_a_visible_key_are_skipped() -> None:
    problem = Problem(head_dim=64, causal=True, seq_q=4096)
    (work,) = MMA_SYNC.work(problem, BASE, gpu("sm_90a"))
    assert 4096 * work.mma < 1.02 * OPERATOR.cost(problem).flops
    assert visible_keys(problem)[0] == 1
