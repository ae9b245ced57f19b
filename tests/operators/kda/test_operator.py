"""kda: its mathematics, its arguments, and its kernels on the emulator and through NVRTC."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_no_spills, assert_right, assert_right_at
from tests.support.counted import by_launch, global_bytes
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import distance
from tuner.operators.kda.fused.config import Config as FusedConfig
from tuner.operators.kda.operator import kda
from tuner.operators.kda.prep_scan.config import Config
from tuner.operators.kda.problem import Problem
from tuner.operators.kda.recurrent.implementation import Config as RecurrentConfig
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.problem import Arrays

OPERATOR = operators.load("kda")
NAIVE, RECURRENT, PREP_SCAN, FUSED = (
    operators.implementation("kda", name) for name in ("naive", "recurrent", "prep_scan", "fused")
)
CHUNKED = pytest.mark.parametrize("implementation", [PREP_SCAN, FUSED], ids=["prep_scan", "fused"])

SMALL = Problem(key_dim=64, value_dim=64, use_initial_state=True, output_final_state=True)
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
SOFTPLUS = {"use_gate_in_kernel": True, "use_dt_bias": True}
BOUNDED = {**SOFTPLUS, "use_lower_bound": True, "safe_gate": True}
FP32 = {"dtype": DType.FP32, "gate_dtype": DType.FP32, "beta_dtype": DType.FP32}
BASE = Config(C=16, BV=32, rows=16, stages=3, loader=True, partials=2, ahead=0, prep_groups=2, prep_min_ctas=1)
FUSED_BASE = FusedConfig(C=16, BV=32, rows=16, stages=4, partials=1, prep_groups=2, producers=2)
FP32_GATE = replace(SMALL, gate_dtype=DType.FP32)
FP32_GATE_AND_BETA = replace(FP32_GATE, beta_dtype=DType.FP32)
RAW_FP16 = replace(SMALL, dtype=DType.FP16, **RAW)
DIM_48 = replace(SMALL, key_dim=48, value_dim=48)
# Covering sets: each value of every tunable and static flag; chunks of 16 and of 32, and keys ahead, with and without a
# warp that loads.
PREP_SCAN_CASES = {
    "chunks_of_16": (FP32_GATE, BASE),
    "chunks_of_32_keys_ahead": (
        FP32_GATE_AND_BETA,
        replace(BASE, C=32, BV=64, rows=32, ahead=2, partials=1, prep_groups=8),
    ),
    "raw_fp16_more_keys_ahead": (RAW_FP16, replace(BASE, stages=4, ahead=4, prep_groups=16)),
    "dims_without_full_swizzle_keys_ahead_without_loader": (
        DIM_48,
        replace(BASE, BV=48, loader=False, stages=4, ahead=2, prep_groups=8),
    ),
    "smallest_dims_chunks_of_32_without_loader_two_stages_bounded": (
        replace(SMALL, key_dim=16, value_dim=16, **BOUNDED),
        replace(BASE, C=32, BV=16, loader=False, stages=2, prep_groups=8),
    ),
    "k256_v16_softplus": (
        replace(SMALL, key_dim=256, value_dim=16, **SOFTPLUS),
        replace(BASE, BV=16, prep_min_ctas=4),
    ),
}
FUSED_CASES = {
    "chunks_of_16": (FP32_GATE, FUSED_BASE),
    "chunks_of_32_one_producer": (
        FP32_GATE_AND_BETA,
        replace(FUSED_BASE, C=32, BV=64, rows=32, stages=2, prep_groups=4, producers=1),
    ),
    "raw_fp16_seven_producers_of_one_warp": (RAW_FP16, replace(FUSED_BASE, stages=7, producers=7)),
    "bounded_three_producers_two_partials": (
        replace(SMALL, key_dim=48, **BOUNDED),
        replace(FUSED_BASE, BV=64, stages=3, producers=3, prep_groups=8, partials=2),
    ),
}
RECURRENT_CASES = {
    "fp32_raw": (replace(SMALL, **FP32, **RAW, **SOFTPLUS), RecurrentConfig(BV=32, columns=1, splits=8, BT=8)),
    "columns_of_four": (SMALL, RecurrentConfig(BV=64, columns=4, splits=2, BT=4)),
    "one_lane_a_column": (replace(SMALL, key_dim=48), RecurrentConfig(BV=32, columns=1, splits=1, BT=2)),
    "a_warp_a_column": (replace(SMALL, key_dim=128, value_dim=16), RecurrentConfig(8, 2, 32, 16)),
}
BY_CHUNKS = {(16, "prep_scan"): PREP_SCAN_CASES["chunks_of_16"], (16, "fused"): FUSED_CASES["chunks_of_16"]}
BY_CHUNKS[32, "prep_scan"] = PREP_SCAN_CASES["chunks_of_32_keys_ahead"]
BY_CHUNKS[32, "fused"] = FUSED_CASES["chunks_of_32_one_producer"]
# More chunks than most rings have slots, the last of them short; a batch, and heads of q that value heads share.
PLACES = (
    ({"seq_len": 77, "heads": 1, "value_heads": 1}, "weak_gate"),
    ({"batch": 2, "seq_len": 19, "heads": 2, "value_heads": 4}, "gate_spikes"),
)
ONE_HEAD = {"batch": 1, "heads": 1, "value_heads": 1}


def drawn(problem: Problem, kind: str = "weak_gate") -> Arrays:
    return OPERATOR.inputs(problem, np.random.default_rng(0), kind)


def run(implementation: Any, problem: Problem, config: Any, arrays: Arrays | None = None) -> Any:
    """(outputs, Run) of a config, found right under the race detector."""
    return assert_right(Instance(OPERATOR, implementation, problem, config), arrays or drawn(problem), CHECKED[0])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"key_dim": 24}, "key_dim 24"),
        ({"value_dim": 272}, "value_dim 272"),
        ({"dtype": DType.INT32}, "dtype int32"),
        ({"seq_len": 0}, "seq_len 0"),
        ({"heads": 4, "value_heads": 6}, "value_heads 6 is not a multiple of heads 4"),
        ({"batch": 70000}, "sequences 70000"),
        ({"batch": 2, "use_cu_seqlens": True}, "batch 2"),
        ({"allow_neg_eigval": True}, "use_beta_sigmoid_in_kernel"),
        ({"use_lower_bound": True}, "use_gate_in_kernel"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_name_and_value(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Problem(**fields)


def test_without_decay_and_with_beta_one_a_stored_value_is_recalled_exactly() -> None:
    problem = Problem(key_dim=16, value_dim=16, batch=1, seq_len=3, heads=1, dtype=DType.FP32)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "zero_gate")
    arrays["q"] = arrays["k"] = np.eye(16)[[5, 9, 5]][None, :, None, :]
    o = OPERATOR.reference(problem, {**arrays, "beta": np.ones((1, 3, 1)), "scale": 1.0})["o"]
    np.testing.assert_allclose(o, arrays["v"].astype(float), atol=1e-12)


def test_a_state_carries_over_from_one_half_of_a_sequence_to_the_other() -> None:
    whole = replace(SMALL, batch=1, seq_len=20, heads=2)
    half = replace(whole, seq_len=10)
    arrays = OPERATOR.inputs(whole, np.random.default_rng(0), "strong_gate")
    tokens = {name: arrays[name] for name in ("q", "k", "v", "g", "beta")}
    left, right = ({name: x[:, part] for name, x in tokens.items()} for part in (slice(10), slice(10, 20)))
    first = OPERATOR.reference(half, {**left, "initial_state": arrays["initial_state"]})
    second = OPERATOR.reference(half, {**right, "initial_state": first["final_state"]})
    expected = OPERATOR.reference(whole, arrays)
    np.testing.assert_allclose(np.concatenate([first["o"], second["o"]], axis=1), expected["o"], atol=1e-12)
    np.testing.assert_allclose(second["final_state"], expected["final_state"], atol=1e-12)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_the_chunked_form_differs_from_the_recurrence_by_rounding_only(kind: str) -> None:
    problem = replace(SMALL, batch=1, seq_len=77, heads=1, value_heads=1)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    exact, rounded = OPERATOR.reference(problem, arrays), OPERATOR.rounded(problem, arrays)
    for name in ("o", "final_state"):
        ratio, _ = distance(rounded[name], exact[name])
        assert 1e-4 < ratio < 1e-2


def test_a_call_takes_the_names_of_chunk_kda_and_leaves_absent_states_out() -> None:
    tensors = {name: object() for name in ("q", "k", "v", "g", "beta")}
    request = kda(**tensors, scale=0.5, use_qk_l2norm_in_kernel=True)
    assert request.arrays == tensors
    assert request.statics["use_initial_state"] is False
    assert request.statics["use_qk_l2norm_in_kernel"] is True
    assert request.scalars == {"scale": 0.5}


def test_a_sequence_without_tokens_keeps_its_state() -> None:
    problem = replace(SMALL, seq_len=9, heads=1, value_heads=1, use_cu_seqlens=True, boundaries=4)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "weak_gate")
    arrays["cu_seqlens"] = np.array([0, 4, 4, 9])
    final = OPERATOR.reference(problem, arrays)["final_state"]
    np.testing.assert_array_equal(final[1], arrays["initial_state"][1])


def test_a_lower_bound_of_five_promises_a_safe_gate() -> None:
    request = kda(*[object()] * 5, use_gate_in_kernel=True, A_log=object(), lower_bound=-5.0)
    assert request.statics["safe_gate"] is True
    assert request.scalars == {"lower_bound": -5.0}


def test_a_flat_dt_bias_is_taken_by_heads() -> None:
    bias, A_log = np.zeros(6 * 16, np.float32), np.zeros(6, np.float32)
    request = kda(*[object()] * 5, use_gate_in_kernel=True, A_log=A_log, dt_bias=bias)
    assert request.arrays["dt_bias"].shape == (6, 16)


def test_head_first_tensors_are_taken_by_their_axes() -> None:
    request = kda(*[object()] * 5, layout="bhtd")
    assert request.axes == {**dict.fromkeys(("q", "k", "v", "g", "o"), (0, 2, 1, 3)), "beta": (0, 2, 1)}


@pytest.mark.parametrize("wrong", [{"layout": "tbhd"}, {"scale": float("nan")}, {"lower_bound": 1.0}, {"A_log": 0}])
def test_a_wrong_layout_or_number_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        kda(*[object()] * 5, **wrong)


@pytest.mark.parametrize("gate", [{}, SOFTPLUS, BOUNDED], ids=["log", "softplus", "bounded"])
def test_naive_is_right_for_raw_fp32_tensors(gate: dict[str, bool]) -> None:
    problem = replace(SMALL, key_dim=32, value_dim=48, **FP32, **RAW, **gate)
    assert_right_at(Instance.default(OPERATOR, NAIVE, problem, ARCHES["sm_90a"]), *PLACES)


@pytest.mark.parametrize("case", RECURRENT_CASES)
def test_recurrent_is_right(case: str) -> None:
    assert_right_at(Instance(OPERATOR, RECURRENT, *RECURRENT_CASES[case]), *PLACES)


@pytest.mark.parametrize("case", PREP_SCAN_CASES)
def test_prep_scan_is_right(case: str) -> None:
    assert_right_at(Instance(OPERATOR, PREP_SCAN, *PREP_SCAN_CASES[case]), *PLACES)


@pytest.mark.parametrize("case", FUSED_CASES)
def test_fused_is_right(case: str) -> None:
    assert_right_at(Instance(OPERATOR, FUSED, *FUSED_CASES[case]), *PLACES)


def test_a_ring_of_seven_slots_is_walked_more_than_once() -> None:
    problem, config = FUSED_CASES["raw_fp16_seven_producers_of_one_warp"]
    run(FUSED, replace(problem, seq_len=120, **ONE_HEAD), config)


@pytest.mark.parametrize(
    "implementation", [NAIVE, RECURRENT, PREP_SCAN, FUSED], ids=lambda implementation: implementation.name
)
def test_packed_sequences_of_any_length_are_right(implementation: Any) -> None:
    problem = replace(SMALL, key_dim=32, value_dim=32, use_cu_seqlens=True, **SOFTPLUS)
    one = {"seq_len": 1, "heads": 1, "value_heads": 1, "boundaries": 2}, "weak_gate"
    many = {"seq_len": 130, "heads": 2, "value_heads": 4, "boundaries": 7}, "strong_gate"
    assert_right_at(Instance.default(OPERATOR, implementation, problem, ARCHES["sm_90a"]), one, many)


@CHUNKED
@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_chunks_are_right_for_every_kind_of_input(implementation: Any, kind: str) -> None:
    problem, config = BY_CHUNKS[16, implementation.name]
    problem = replace(problem, seq_len=77, **ONE_HEAD)
    run(implementation, problem, config, drawn(problem, kind))


@CHUNKED
@pytest.mark.parametrize(("C", "gate"), [(16, -np.inf), (32, -1e30)])
def test_a_gate_that_wipes_the_state_leaves_the_decays_after_it_exact(implementation: Any, C: int, gate: float) -> None:
    problem, config = BY_CHUNKS[C, implementation.name]
    problem = replace(problem, seq_len=77, **ONE_HEAD)
    arrays = drawn(problem, "strong_gate")
    arrays["g"][:, 5::13] = gate
    run(implementation, problem, config, arrays)


@CHUNKED
def test_tokens_do_not_see_the_future(implementation: Any) -> None:
    problem, config = BY_CHUNKS[16, implementation.name]
    problem = replace(problem, seq_len=40, **ONE_HEAD)
    arrays = drawn(problem, "gate_spikes")
    changed = {name: x.copy() for name, x in arrays.items()}
    for name in ("q", "k", "v", "g", "beta"):
        changed[name][:, 21:] = -7.0
    before, after = (
        emulator.run(Instance(OPERATOR, implementation, problem, config), variant, CHECKED[0])[0]["o"][:, :21]
        for variant in (arrays, changed)
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "case", ["chunks_of_16", "chunks_of_32_keys_ahead", "raw_fp16_more_keys_ahead", "k256_v16_softplus"]
)
def test_prep_scan_counts_its_mma_bytes_and_barriers(case: str) -> None:
    problem, config = PREP_SCAN_CASES[case]
    problem = replace(problem, batch=1, seq_len=45, heads=1, value_heads=2)
    _, done = run(PREP_SCAN, problem, config)
    prep, scan = PREP_SCAN.work(problem, config, gpu("H200"))
    counted = by_launch(done, PREP_SCAN.plan(problem, config))
    for work, counters in zip((prep, scan), counted, strict=True):
        assert work.mma == counters.mma_m16n8k16
        assert work.barriers == counters.barriers
        assert work.l2_bytes == global_bytes(counters)
    assert scan.chain == -(-problem.seq_len // config.C)


@pytest.mark.parametrize("case", FUSED_CASES)
def test_fused_counts_its_mma_bytes_and_barriers(case: str) -> None:
    problem, config = FUSED_CASES[case]
    problem = replace(problem, batch=1, seq_len=90, heads=1, value_heads=2)
    _, done = run(FUSED, problem, config)
    (work,) = FUSED.work(problem, config, gpu("H200"))
    assert work.mma == done.counters.mma_m16n8k16
    assert work.barriers == done.counters.barriers
    assert work.l2_bytes == global_bytes(done.counters)


@CHUNKED
@pytest.mark.parametrize("C", [16, 32])
def test_chunks_of_64_channels_have_no_bank_conflict(implementation: Any, C: int) -> None:
    problem, config = BY_CHUNKS[C, implementation.name]
    _, done = run(implementation, replace(problem, seq_len=77, **ONE_HEAD), config)
    assert done.counters.bank_conflicts == 0


def test_sums_of_gates_are_read_without_bank_conflicts_where_their_rows_begin_in_any_bank() -> None:
    problem, config = PREP_SCAN_CASES["dims_without_full_swizzle_keys_ahead_without_loader"]
    _, done = run(PREP_SCAN, replace(problem, seq_len=16, **ONE_HEAD), config)
    assert done.counters.bank_conflicts <= 48  # of stores to tiles


def test_recurrent_counts_its_bytes_and_barriers() -> None:
    problem, config = RECURRENT_CASES["columns_of_four"]
    problem = replace(problem, seq_len=21, **ONE_HEAD)
    _, done = run(RECURRENT, problem, config)
    (work,) = RECURRENT.work(problem, config, gpu("H200"))
    assert work.barriers == done.counters.barriers
    assert work.l2_bytes == global_bytes(done.counters)


@pytest.mark.parametrize("dim", [64, 128])
def test_bytes_stay_near_the_floor_without_a_workspace_and_below_two_and_a_half_with_one(dim: int) -> None:
    problem = Problem(key_dim=dim, value_dim=dim)
    moved = {
        implementation.name: sum(
            work.dram_bytes
            for work in implementation.work(problem, implementation.default(problem, ARCHES["sm_90a"]), gpu("H200"))
        )
        for implementation in (PREP_SCAN, FUSED)
    }
    floor = OPERATOR.cost(problem).bytes
    assert moved["fused"] <= 1.1 * floor
    assert moved["prep_scan"] <= 2.5 * floor


@pytest.mark.parametrize(
    ("implementation", "arch"), [(PREP_SCAN, "sm_120a"), (FUSED, "sm_80")], ids=["prep_scan", "fused"]
)
@pytest.mark.slow
def test_defaults_of_64_dims_with_states_compile_without_spills(implementation: Any, arch: str) -> None:
    assert_no_spills(OPERATOR, implementation, SMALL, arch)


def _with_gates_of_any_size(problem: Problem) -> Arrays:
    """Gates that are open, hardly closed, closed and more than closed, side by side in a chunk; one bad channel."""
    rng = np.random.default_rng(7)
    arrays = OPERATOR.inputs(problem, rng, "weak_gate")
    g = arrays["g"].astype(np.float32)
    drawn = rng.random(g.shape)
    g = np.where(drawn < 0.1, -(10.0 ** rng.uniform(-4, 30, g.shape)), g)
    g = np.where(drawn > 0.97, -np.inf, np.where(drawn > 0.94, -1e30, g))
    g[:, 20:40] = -1e-3
    g[:, 20:40, :, 5] = -40.0
    return arrays | {"g": g.astype(arrays["g"].dtype)}


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
@pytest.mark.parametrize("name", [implementation.name for implementation in operators.implementations("kda")])
def test_gates_of_any_size_are_exact(name: str, dtype: DType) -> None:
    implementation, arch = operators.implementation("kda", name), ARCHES["sm_90a"]
    problem = replace(SMALL, dtype=dtype, gate_dtype=DType.FP32, seq_len=77, heads=1, value_heads=2)
    if implementation.refusal(problem, arch) is not None:
        pytest.skip(f"{name} does not serve {dtype.value}")
    instance = Instance.default(OPERATOR, implementation, problem, arch)
    outputs, _ = assert_right(instance, _with_gates_of_any_size(problem), CHECKED[0])
    assert all(np.isfinite(output.astype(np.float64)).all() for output in outputs.values())
