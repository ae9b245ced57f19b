"""kda: its mathematics, its arguments, and its kernels on the emulator and through NVRTC."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from claims import BOTH_WAYS
from counted import by_launch, global_bytes

from tuner import emulator, operators
from tuner.arch import ARCHES, gpu
from tuner.check import CHECKED, PLAIN, Job, check
from tuner.dtype import DType
from tuner.emulator import Mode
from tuner.errors import UsageError
from tuner.nvrtc import Compiler
from tuner.operator import to_fields
from tuner.operators.kda.fused_config import Config as FusedConfig
from tuner.operators.kda.operator import kda
from tuner.operators.kda.prep_scan_config import Config
from tuner.operators.kda.problem import Problem
from tuner.operators.kda.recurrent import Config as RecurrentConfig
from tuner.render import render
from tuner.result import Failed
from tuner.toolkit import Options
from tuner.verify import distance, errors

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
BASES = {"prep_scan": BASE, "fused": FUSED_BASE}
# Every tunable and every static flag away from its default at least once.
PREP_SCAN_CASES = {
    "no_loader_two_stages_one_partial": (SMALL, replace(BASE, loader=False, stages=2, partials=1)),
    "chunk32_rows32_keys_ahead": (SMALL, replace(BASE, C=32, rows=32, ahead=2, prep_groups=8)),
    "keys_ahead_without_loader": (SMALL, replace(BASE, loader=False, stages=4, ahead=4)),
    "chunk32_no_loader": (replace(SMALL, safe_gate=True), replace(BASE, C=32, loader=False, prep_groups=4)),
    "raw_fp16": (replace(SMALL, dtype=DType.FP16, **RAW), replace(BASE, stages=4, prep_groups=16)),
    "fp32_gate_and_beta": (replace(SMALL, gate_dtype=DType.FP32, beta_dtype=DType.FP32), replace(BASE, BV=64)),
    "dims_without_full_swizzle": (replace(SMALL, key_dim=48, value_dim=48), replace(BASE, BV=48, prep_groups=8)),
    "smallest_dims": (replace(SMALL, key_dim=16, value_dim=16), replace(BASE, BV=16, prep_groups=8)),
    "k256_v16": (replace(SMALL, key_dim=256, value_dim=16, **SOFTPLUS), replace(BASE, BV=16, prep_min_ctas=4)),
}
FUSED_CASES = {
    "raw_fp16_chunk32_rows32_one_producer": (
        replace(SMALL, dtype=DType.FP16, **RAW),
        replace(FUSED_BASE, C=32, rows=32, stages=2, prep_groups=4, producers=1),
    ),
    "three_producers": (replace(SMALL, **BOUNDED), replace(FUSED_BASE, BV=64, stages=3, producers=3, prep_groups=4)),
    "seven_producers_of_one_warp": (SMALL, replace(FUSED_BASE, stages=7, producers=7)),
    "softplus_two_partials": (replace(SMALL, key_dim=48, **SOFTPLUS), replace(FUSED_BASE, prep_groups=8, partials=2)),
}
RECURRENT_CASES = {
    "fp32_raw": (replace(SMALL, **FP32, **RAW, **SOFTPLUS), RecurrentConfig(BV=32, columns=1, splits=8, BT=8)),
    "columns_of_four": (SMALL, RecurrentConfig(BV=64, columns=4, splits=2, BT=4)),
    "one_lane_a_column": (replace(SMALL, key_dim=48), RecurrentConfig(BV=32, columns=1, splits=1, BT=2)),
    "a_warp_a_column": (replace(SMALL, key_dim=128, value_dim=8 * 6), RecurrentConfig(8, 2, 32, 16)),
}


def run(implementation: Any, problem: Problem, config: Any, mode: Mode, kind: str = "weak_gate") -> Any:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *emulator.run(OPERATOR, implementation, problem, config, arrays, mode)


def assert_right(implementation: Any, problem: Problem, config: Any, modes: tuple[Mode, ...]) -> None:
    space = implementation.space(problem, ARCHES["sm_90a"])
    assert space.refusal(config) is None
    job = Job("kda", implementation.name, to_fields(problem), to_fields(config), modes)
    verdict = check(job)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"key_dim": 24}, "key_dim 24"),
        ({"value_dim": 272}, "value_dim 272"),
        ({"dtype": DType.INT32}, "dtype int32"),
        ({"seq_len": 0}, "seq_len 0"),
        ({"heads": 4, "value_heads": 6}, "value_heads 6 is no multiple of heads 4"),
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
    assert_right(NAIVE, problem, NAIVE.default(problem, ARCHES["sm_90a"]), PLAIN[:1] + CHECKED[:1])


@pytest.mark.parametrize("case", RECURRENT_CASES)
def test_recurrent_is_right(case: str) -> None:
    assert_right(RECURRENT, *RECURRENT_CASES[case], PLAIN[:1] + CHECKED[:1])


@pytest.mark.parametrize("case", PREP_SCAN_CASES)
def test_prep_scan_is_right(case: str) -> None:
    assert_right(PREP_SCAN, *PREP_SCAN_CASES[case], BOTH_WAYS)


@pytest.mark.parametrize("case", FUSED_CASES)
def test_fused_is_right(case: str) -> None:
    assert_right(FUSED, *FUSED_CASES[case], BOTH_WAYS)


@pytest.mark.parametrize("implementation", [NAIVE, RECURRENT, PREP_SCAN, FUSED], ids=lambda each: each.name)
def test_packed_sequences_of_any_length_are_right(implementation: Any) -> None:
    problem = replace(SMALL, key_dim=32, value_dim=32, use_cu_seqlens=True)
    assert_right(implementation, problem, implementation.default(problem, ARCHES["sm_90a"]), PLAIN[:1] + CHECKED[:1])


@CHUNKED
@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_chunks_are_right_for_every_kind_of_input(implementation: Any, kind: str) -> None:
    problem = replace(SMALL, batch=1, seq_len=77, heads=1, value_heads=1)
    config = implementation.default(problem, ARCHES["sm_90a"])
    arrays, outputs, _ = run(implementation, problem, config, PLAIN[0], kind)
    for error in errors(OPERATOR, problem, arrays, outputs):
        assert error.ok, error


@CHUNKED
@pytest.mark.parametrize(("C", "gate"), [(16, -np.inf), (32, -1e30)])
def test_a_gate_that_wipes_the_state_leaves_the_decays_after_it_exact(implementation: Any, C: int, gate: float) -> None:
    problem = replace(SMALL, batch=1, seq_len=77, heads=1, value_heads=1, gate_dtype=DType.FP32)
    config = replace(BASES[implementation.name], C=C, prep_groups=4)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "strong_gate")
    arrays["g"][:, 5::13] = gate
    outputs, _ = emulator.run(OPERATOR, implementation, problem, config, arrays, PLAIN[0])
    for error in errors(OPERATOR, problem, arrays, outputs):
        assert error.ok, error


@CHUNKED
def test_tokens_do_not_see_the_future(implementation: Any) -> None:
    problem = replace(SMALL, batch=1, seq_len=40, heads=1, value_heads=1)
    config = implementation.default(problem, ARCHES["sm_90a"])
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "gate_spikes")
    changed = {name: x.copy() for name, x in arrays.items()}
    for name in ("q", "k", "v", "g", "beta"):
        changed[name][:, 21:] = -7.0
    before, after = (
        emulator.run(OPERATOR, implementation, problem, config, each, PLAIN[0])[0]["o"][:, :21]
        for each in (arrays, changed)
    )
    np.testing.assert_array_equal(before, after)


def test_prep_scan_counts_its_mma_bytes_and_barriers() -> None:
    problem = replace(SMALL, batch=1, seq_len=45, heads=1, value_heads=2, use_qk_l2norm_in_kernel=True)
    for config in (BASE, replace(BASE, ahead=2), replace(BASE, C=32, rows=32, loader=False)):
        _, _, done = run(PREP_SCAN, problem, config, CHECKED[0])
        prep, scan = PREP_SCAN.work(problem, config, gpu("H200"))
        counted = by_launch(done, PREP_SCAN.plan(problem, config))
        for work, counters in zip((prep, scan), counted, strict=True):
            assert work.mma == counters.mma_m16n8k16
            assert work.barriers == counters.barriers
            assert work.l2_bytes == global_bytes(counters)
        assert scan.chain == -(-problem.seq_len // config.C)


def test_fused_counts_its_mma_bytes_and_barriers() -> None:
    problem = replace(SMALL, batch=1, seq_len=90, heads=1, value_heads=2)
    wide = replace(FUSED_BASE, C=32, BV=64, prep_groups=4, stages=2, producers=1)
    for config in (FUSED_BASE, replace(FUSED_BASE, stages=5, producers=5), wide):
        _, _, done = run(FUSED, problem, config, CHECKED[0])
        (work,) = FUSED.work(problem, config, gpu("H200"))
        assert work.mma == done.counters.mma_m16n8k16
        assert work.barriers == done.counters.barriers
        assert work.l2_bytes == done.counters.global_read_bytes + done.counters.global_write_bytes


@CHUNKED
@pytest.mark.parametrize("C", [16, 32])
def test_chunks_of_64_channels_have_no_bank_conflict(implementation: Any, C: int) -> None:
    problem = replace(SMALL, key_dim=64, value_dim=64, batch=1, seq_len=77, heads=1, value_heads=1)
    config = replace(BASES[implementation.name], C=C, prep_groups=4)
    _, _, done = run(implementation, problem, config, CHECKED[0])
    assert done.counters.bank_conflicts == 0


def test_sums_of_gates_are_read_without_bank_conflicts_where_their_rows_begin_in_any_bank() -> None:
    problem = replace(SMALL, key_dim=48, value_dim=48, batch=1, seq_len=16, heads=1, value_heads=1)
    _, _, done = run(PREP_SCAN, problem, PREP_SCAN.default(problem, ARCHES["sm_90a"]), CHECKED[0])
    assert done.counters.bank_conflicts <= 48  # of stores to tiles


def test_recurrent_counts_its_bytes_and_barriers() -> None:
    problem = replace(SMALL, batch=1, seq_len=21, heads=1, value_heads=1)
    config = RecurrentConfig(BV=32, columns=1, splits=8, BT=8)
    _, _, done = run(RECURRENT, problem, config, CHECKED[0])
    (work,) = RECURRENT.work(problem, config, gpu("H200"))
    assert work.barriers == done.counters.barriers
    assert work.l2_bytes == done.counters.global_read_bytes + done.counters.global_write_bytes


@pytest.mark.parametrize("dim", [64, 128])
def test_bytes_stay_near_the_floor_without_a_workspace_and_below_two_and_a_half_with_one(dim: int) -> None:
    problem = Problem(key_dim=dim, value_dim=dim)
    moved = {
        each.name: sum(
            work.dram_bytes for work in each.work(problem, each.default(problem, ARCHES["sm_90a"]), gpu("H200"))
        )
        for each in (PREP_SCAN, FUSED)
    }
    floor = OPERATOR.cost(problem).bytes
    assert moved["fused"] <= 1.1 * floor
    assert moved["prep_scan"] <= 2.5 * floor


def test_defaults_of_64_dims_compile_for_the_oldest_and_the_newest_arch_without_spills() -> None:
    problem = Problem(key_dim=64, value_dim=64, use_initial_state=True, output_final_state=True)
    jobs = [(impl, ARCHES[name]) for impl in (PREP_SCAN, FUSED) for name in ("sm_80", "sm_120a")]
    sources = [
        (render(OPERATOR, impl, problem, impl.default(problem, arch)), Options(arch=arch.name)) for impl, arch in jobs
    ]
    with Compiler(workers=2) as compiler:
        for position, cubin in compiler.compile_many(sources):
            assert not isinstance(cubin, Failed), cubin.log
            spills = {name: usage.spills for name, usage in cubin.entries.items()}
            assert not any(spills.values()), (jobs[position][1].name, spills)
