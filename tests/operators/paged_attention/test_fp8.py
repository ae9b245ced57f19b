"""paged_attention over a cache of 8 bits: every value that it may hold, its scales, and what a kernel reads of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import DISTINCT_ARCHES, assert_declared, assert_no_spills, assert_right_at_edges
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, UsageError
from tuner.evaluate.check.checker import CHECKED, Job
from tuner.evaluate.check.compare import errors
from tuner.evaluate.check.on_ptx import check_ptx
from tuner.operators.flash_attention.split_keys.config import Config
from tuner.operators.paged_attention.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields
from tuner.store.records import Snapshot

OPERATOR = operators.load("paged_attention")
NAMES = ("naive", "split_keys", "mma_sync")
NAIVE, SPLIT_KEYS, MMA_SYNC = (operators.implementation("paged_attention", name) for name in NAMES)
H200 = gpu("H200")
EIGHT = DType.FP8_E4M3

BASE = Config(BM=16, BN=16, warps=2, stages=2, splits=1, q_in_registers=False)
# Every tunable away from BASE at least once, and rows of one chunk, of odd numbers and of even ones.
CASES = {
    "d16_two_row_tiles": (16, replace(BASE, BM=32, splits=4)),
    "d32_wide_tiles": (32, replace(BASE, BN=64, stages=4)),
    "d48_tiles_of_48_keys": (48, replace(BASE, BN=48, warps=4, splits=2)),
    "d80_q_in_registers": (80, replace(BASE, BN=32, stages=3, q_in_registers=True)),
    "d128_more_shares_than_steps": (128, replace(BASE, BN=32, warps=4, splits=8)),
    "d256_one_warp": (256, replace(BASE, warps=1, stages=6, splits=2)),
}
BLOCK = MMA_SYNC.config(
    BM=64,
    BN=32,
    warps=4,
    d_warps=1,
    stages=3,
    smem_budget=101376,
    min_ctas=1,
    q_in_registers=True,
    swizzle=True,
    lazy_rescale=True,
    narrow=16,
    splits=1,
)
BLOCK_CASES = {
    "d16_fewer_rows_than_a_pass_has": (16, replace(BLOCK, splits=2)),
    "d48_wide_tiles": (48, replace(BLOCK, BN=64, stages=4, q_in_registers=False)),
    "d64_warps_share_rows": (64, replace(BLOCK, d_warps=2, narrow=0, warps=4)),
    "d80_padded_rows": (80, replace(BLOCK, swizzle=False, q_in_registers=False)),
    "d128_q_in_the_ring": (128, replace(BLOCK, BM=128, warps=8, smem_budget=49152)),
    "d256_eager_and_split": (256, replace(BLOCK, stages=4, q_in_registers=False, lazy_rescale=False, splits=3)),
}
ALL = pytest.mark.parametrize(
    ("implementation", "config"),
    [(SPLIT_KEYS, replace(BASE, splits=2)), (MMA_SYNC, BLOCK), (NAIVE, NAIVE.config(32, 8))],
    ids=("split_keys", "mma_sync", "naive"),
)


def of_case(name: str, **sizes: Any) -> tuple[Problem, Any]:
    D, config = {**CASES, **BLOCK_CASES}[name]
    dtype = (DType.BF16, DType.FP16)[D % 32 > 0]
    return Problem(head_dim=D, dtype=dtype, kv_cache_dtype=EIGHT, **sizes), config


def implementation_of(case: str) -> Any:
    return SPLIT_KEYS if case in CASES else MMA_SYNC


def drawn(problem: Problem, kind: str = "normal") -> dict[str, Any]:
    return OPERATOR.inputs(problem, np.random.default_rng(0), kind)


def run(problem: Problem, implementation: Any, config: Any, arrays: Any, mode: Any = CHECKED[0]) -> Any:
    outputs, happened = emulator.run(Instance(OPERATOR, implementation, problem, config), arrays, mode)
    assert not happened.findings, happened.findings[0]
    return outputs


@pytest.mark.parametrize("case", [*CASES, *BLOCK_CASES])
def test_every_tunable_gives_the_right_result(case: str) -> None:
    problem, config = of_case(case)
    modes = (Mode(True, "reverse", "early"), CHECKED[0])
    assert_right_at_edges(Instance(OPERATOR, implementation_of(case), problem, config), modes)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.FP32])
def test_the_naive_kernel_serves_every_dtype_of_q(dtype: DType) -> None:
    problem = Problem(head_dim=16, dtype=dtype, kv_cache_dtype=EIGHT)
    assert_right_at_edges(Instance.default(OPERATOR, NAIVE, problem, ARCHES["sm_80"]), (CHECKED[0],))


@ALL
@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
def test_values_are_those_of_every_code(implementation: Any, config: Any, dtype: DType) -> None:
    """Each sequence attends one key whose values are 16 codes: with the others the results are those of all but NaN."""
    sizes = {"batch": 16, "heads": 1, "kv_heads": 1, "page_size": 1, "max_pages": 1}
    problem = Problem(head_dim=16, dtype=dtype, kv_cache_dtype=EIGHT, **sizes)
    arrays = drawn(problem)
    table, codes = np.arange(16, dtype=np.int32)[:, None], np.arange(256, dtype=np.uint8).reshape(16, 1, 1, 16)
    arrays |= {"block_table": table, "v_cache": codes.view(EIGHT.numpy), "cache_seqlens": np.ones(16, np.int32)}
    arrays["k_cache"] = np.zeros_like(arrays["v_cache"])
    result = run(problem, implementation, config, arrays)["o"].reshape(256)
    exact = codes.view(EIGHT.numpy).astype(dtype.numpy).reshape(256)
    np.testing.assert_array_equal(result.astype(np.float64), exact.astype(np.float64))
    assert np.isnan(result[127]) and np.isnan(result[255])


@ALL
def test_keys_are_those_of_every_code(implementation: Any, config: Any) -> None:
    """A query that is 1 in one place, of as many heads as there are places, finds each code of a key."""
    sizes = {"batch": 16, "heads": 16, "kv_heads": 1, "page_size": 1, "max_pages": 1}
    problem = Problem(head_dim=16, dtype=DType.FP16, kv_cache_dtype=EIGHT, **sizes)
    arrays = drawn(problem) | {"softmax_scale": 1.0}
    codes = np.arange(256, dtype=np.uint8).reshape(16, 1, 1, 16)
    arrays |= {"block_table": np.arange(16, dtype=np.int32)[:, None], "cache_seqlens": np.ones(16, np.int32)}
    arrays |= {"q": np.tile(np.eye(16, dtype=np.float16), (16, 1, 1, 1)), "k_cache": codes.view(EIGHT.numpy)}
    arrays["v_cache"] = np.zeros_like(arrays["k_cache"])
    result = run(problem, implementation, config, arrays)["lse"].reshape(256)
    exact = codes.view(EIGHT.numpy).astype(np.float32).reshape(256)
    held = ~np.isnan(exact).reshape(16, 16).any(axis=1).repeat(16)  # 0 · NaN is NaN in all rows of that key
    np.testing.assert_allclose(result[held], exact[held], rtol=1e-6, atol=1e-6)
    assert np.isnan(result[~held]).all()


@ALL
def test_scales_are_those_of_the_sequence_and_the_kv_head_whatever_their_strides(
    implementation: Any, config: Any
) -> None:
    sizes = {"batch": 3, "heads": 4, "kv_heads": 2, "seq_q": 2, "page_size": 4, "max_pages": 9}
    problem = Problem(head_dim=16, kv_cache_dtype=EIGHT, descales=1, **sizes)
    arrays = drawn(problem)
    strided = {name: np.repeat(arrays[name], 2, axis=1)[:, ::2] for name in ("k_descale", "v_descale")}
    outputs = run(problem, implementation, config, arrays | strided)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    without = OPERATOR.reference(replace(problem, descales=0), arrays)
    assert np.abs(without["o"] - outputs["o"].astype(float)).max() > 0.05


@ALL
def test_keys_that_are_multiplied_with_0_have_scores_of_0_and_hidden_ones_stay_hidden(
    implementation: Any, config: Any
) -> None:
    sizes = {"batch": 3, "heads": 4, "kv_heads": 2, "seq_q": 5, "page_size": 1, "max_pages": 77}
    problem = Problem(head_dim=32, kv_cache_dtype=EIGHT, descales=1, window=30, **sizes)
    arrays = drawn(problem)
    arrays["k_descale"][:, 0] = 0
    outputs = run(problem, implementation, config, arrays)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
def test_one_scale_for_all_of_a_model_is_a_view_of_one_number(packed: bool) -> None:
    sizes = {"seq_q": 9, "sequences": 3, "batch": 1} if packed else {"batch": 3, "seq_q": 2}
    sizes |= {"heads": 4, "kv_heads": 2, "page_size": 8, "max_pages": 6}
    problem = Problem(head_dim=32, kv_cache_dtype=EIGHT, use_cu_seqlens_q=packed, **sizes)
    arrays, scale = drawn(problem), np.broadcast_to(np.float32(0.5), (3, 2))
    names = ("q", "k_cache", "v_cache", "block_table", "cache_seqlens", *["cu_seqlens_q"] * packed)
    o, _ = Dispatcher(Snapshot({}, ())).call(
        "paged_attention", *(arrays[name] for name in names), k_descale=scale, v_descale=scale
    )
    exact = OPERATOR.reference(replace(problem, descales=1), arrays | {"k_descale": scale, "v_descale": scale})
    np.testing.assert_allclose(o.astype(float), exact["o"], atol=0.02)


def test_scores_are_scaled_before_they_are_capped() -> None:
    problem, config = of_case("d48_tiles_of_48_keys", use_softcap=True, batch=2, heads=4, kv_heads=2, descales=1)
    problem = replace(problem, page_size=8, max_pages=12, pages=0, window=0)
    arrays = drawn(problem, "large_logits")
    outputs = run(problem, SPLIT_KEYS, config, arrays)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize(
    "case",
    [
        "d48_tiles_of_48_keys",
        "d80_q_in_registers",
        "d128_more_shares_than_steps",
        "d48_wide_tiles",
        "d128_q_in_the_ring",
        "d256_eager_and_split",
    ],
)
def test_declared_work_is_what_the_emulator_counts(case: str) -> None:
    problem, config = of_case(case, batch=1, heads=8, kv_heads=2, seq_q=3, page_size=16, max_pages=20, descales=1)
    assert_declared(Instance(OPERATOR, implementation_of(case), problem, config), H200, "normal")


def test_a_step_reads_half_of_what_it_reads_of_16_bits() -> None:
    sizes = {"batch": 16, "heads": 32, "kv_heads": 8, "page_size": 16, "max_pages": 2048}
    whole, eight = Problem(**sizes), Problem(kv_cache_dtype=EIGHT, descales=1, **sizes)
    of_both = []
    for problem in (whole, eight):
        works = SPLIT_KEYS.work(problem, SPLIT_KEYS.default(problem, H200.arch), H200)
        of_both.append((OPERATOR.cost(problem).bytes, sum(work.dram_bytes for work in works)))
    assert 0.5 < of_both[1][0] / of_both[0][0] < 0.505
    assert 0.5 < of_both[1][1] / of_both[0][1] < 0.505


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("implementation", [SPLIT_KEYS, MMA_SYNC], ids=lambda implementation: implementation.name)
def test_the_ptx_of_either_conversion_computes_the_same(arch: str, implementation: Any) -> None:
    problem = Problem(head_dim=48, kv_cache_dtype=EIGHT)
    config = to_fields(implementation.default(problem, ARCHES[arch]))
    job = Job(InstanceFields("paged_attention", implementation.name, to_fields(problem), config))
    verdict = check_ptx(job, ARCHES[arch], 2, ["together"])
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("implementation", [SPLIT_KEYS, MMA_SYNC], ids=lambda implementation: implementation.name)
@pytest.mark.parametrize("i", range(len(DISTINCT_ARCHES)), ids=DISTINCT_ARCHES)
@pytest.mark.slow
def test_defaults_never_spill(i: int, implementation: Any) -> None:
    """Widths, dtypes and numbers of queries are dealt out."""
    D, dtype = (256, 128, 112, 192)[i % 4], (DType.BF16, DType.FP16)[i % 2]
    T = 512 if implementation is MMA_SYNC else (1, 8)[i // 2 % 2]
    problem = Problem(head_dim=D, dtype=dtype, kv_cache_dtype=EIGHT, seq_q=T, use_softcap=i > 3)
    assert_no_spills(OPERATOR, implementation, problem, DISTINCT_ARCHES[i])


def test_a_cache_of_16_bits_is_as_q() -> None:
    assert Problem(dtype=DType.FP16).kv_cache_dtype is DType.FP16
    q = np.zeros((1, 1, 1, 16), np.float16)
    cache, table = np.zeros((1, 16, 1, 16), DType.BF16.numpy), np.zeros((1, 1), np.int32)
    with pytest.raises(InputError, match="k_cache is bf16: paged_attention takes fp16 here"):
        Dispatcher(Snapshot({}, ())).call("paged_attention", q, cache, cache, table, np.ones(1, np.int32))


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("head_dim 72: rows of an 8-bit cache are a multiple of 16 bytes", {"head_dim": 72, "kv_cache_dtype": EIGHT}),
        ("k_descale, v_descale: they need an 8-bit cache, and this one is bf16", {"descales": 16}),
    ],
)
def test_what_has_no_meaning_is_refused(said: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=said):
        Problem(**fields)


def test_scales_come_in_pairs() -> None:
    with pytest.raises(UsageError, match="go together"):
        OPERATOR.call(*[np.zeros(1)] * 5, k_descale=np.ones(1))


def test_kernels_that_multiply_what_they_load_refuse_by_name() -> None:
    refusal = operators.implementation("paged_attention", "wgmma").refusal
    assert "kv_cache_dtype fp8_e4m3" in (refusal(Problem(kv_cache_dtype=EIGHT, seq_q=512), ARCHES["sm_90a"]) or "")


def test_what_is_on_its_way_in_bytes_has_slots_beside_the_tiles_that_are_read() -> None:
    problem = Problem(kv_cache_dtype=EIGHT, seq_q=512)
    space = MMA_SYNC.space(problem, ARCHES["sm_90a"])
    with pytest.raises(UsageError, match="while two widened tiles are read"):
        space.index(replace(MMA_SYNC.default(problem, ARCHES["sm_90a"]), stages=2))
