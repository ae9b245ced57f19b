"""flash_attention of fp32 tensors: what the problem says of their precision, and the kernel on tf32 tensor cores."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operators.small_tiles import SMALL_TILES
from tests.support.claims import assert_no_spills
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.errors import UsageError
from tuner.evaluate.check.compare import distance, errors
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.flash_attention.cases import round_tf32
from tuner.operators.flash_attention.mma_tf32.config import Config
from tuner.operators.flash_attention.operator import flash_attention
from tuner.operators.flash_attention.problem import Problem
from tuner.spec.dtype import DType, Precision
from tuner.spec.instance import Instance

OPERATOR = operators.load("flash_attention")
MMA_TF32 = operators.implementation("flash_attention", "mma_tf32")
FP32 = Problem(head_dim=72, dtype=DType.FP32, batch=1, heads=2, kv_heads=1, seq_q=70, seq_k=150)
TF32 = replace(FP32, precision=Precision.TF32)
PRECISIONS = pytest.mark.parametrize("problem", [TF32, FP32], ids=["tf32", "fp32"])

BASE = Config(**SMALL_TILES, heavy_first=False, round_on_arrival=False)
# Every tunable away from BASE at least once, in every swizzle and with every group of columns of O.
CASES = {
    "d24_query_in_registers": (TF32, 24, replace(BASE, q_in_registers=True, BN=48)),
    "d56_query_through_the_ring": (FP32, 56, replace(BASE, q_in_registers=True, smem_budget=16384, BN=32)),
    "d72_rounded_on_arrival": (TF32, 72, replace(BASE, BM=128, BN=16, stages=3, round_on_arrival=True)),
    "d80_32_rows_a_warp": (FP32, 80, replace(BASE, BM=128, lazy_rescale=True, heavy_first=True)),
    "d96_padded": (FP32, 96, replace(BASE, swizzle=False, stages=4)),
    "d128_two_warps_share_rows": (TF32, 128, replace(BASE, BM=32, d_warps=2, lazy_rescale=True, round_on_arrival=True)),
    "d160_eight_keys_a_warp": (FP32, 160, replace(BASE, BM=32, BN=16, d_warps=2)),
}


def run(problem: Problem, config: Config, arrays: Any, mode: Mode) -> Any:
    return emulator.run(Instance(OPERATOR, MMA_TF32, problem, config), arrays, mode)


def inputs(problem: Problem, kind: str = "normal") -> Any:
    return OPERATOR.inputs(problem, np.random.default_rng(0), kind)


def test_all_of_fp32_goes_by_one_name() -> None:
    assert replace(FP32, precision=Precision.FP32) == FP32


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.FP32])
def test_tensors_of_16_bits_have_no_other_precision(precision: Precision) -> None:
    with pytest.raises(UsageError, match=rf"precision {precision.value}: bf16 operands are not converted"):
        Problem(precision=precision)


def test_an_unknown_precision_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="precision fp8: flash_attention supports dtype, tf32, fp32"):
        Problem(precision="fp8")  # type: ignore[arg-type]


def test_a_call_says_the_precision() -> None:
    assert flash_attention(1, 2, 3, precision="tf32").statics["precision"] == "tf32"
    assert flash_attention(1, 2, 3).statics["precision"] == "dtype"


def test_the_tolerance_follows_the_precision() -> None:
    assert [OPERATOR.tolerance(precision)["o"].absolute for precision in (TF32, FP32)] == [1e-3, 2e-5]


def test_rounding_to_tf32_keeps_eleven_bits_and_takes_ties_away_from_zero() -> None:
    x = np.array([1 + 2**-11, -1 - 2**-11, 1 + 2**-11 - 2**-20, 3], np.float32)
    assert round_tf32(x).tolist() == [1 + 2**-10, -1 - 2**-10, 1, 3]


def test_the_rounded_reference_is_as_far_off_as_operands_in_tf32_are() -> None:
    arrays = inputs(TF32)
    exact, rounded = OPERATOR.reference(TF32, arrays), OPERATOR.rounded(TF32, arrays)
    assert 1e-4 < distance(rounded["o"], exact["o"])[0] < 1e-3
    assert distance(OPERATOR.rounded(FP32, arrays)["o"], exact["o"])[0] < 1e-7


@pytest.mark.parametrize("name", ["mma_sync", "split_keys", "wgmma"])
def test_kernels_of_16_bits_refuse_fp32(name: str) -> None:
    assert "fp32" in str(operators.implementation("flash_attention", name).refusal(FP32, ARCHES["sm_90a"]))


def test_16_bits_are_refused_by_name() -> None:
    assert "dtype fp16" in str(MMA_TF32.refusal(Problem(dtype=DType.FP16), ARCHES["sm_80"]))


@PRECISIONS
@pytest.mark.parametrize("D", range(8, 257, 8))
def test_every_head_dim_that_fits_has_dozens_of_configs_and_a_default_on_every_arch(problem: Problem, D: int) -> None:
    for arch in ARCHES.values():
        causal = replace(problem, head_dim=D, head_dim_v=D, causal=True)
        if refused := MMA_TF32.refusal(causal, arch):
            assert problem is FP32 and D > 128 and D % 32 and f"head_dim {D}" in refused
            continue
        space = MMA_TF32.space(causal, arch)
        assert 20 < len(space) < 20_000
        assert space.refusal(MMA_TF32.default(causal, arch)) is None


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_is_right_and_does_what_it_declares(case: str) -> None:
    problem, D, config = CASES[case]
    problem = replace(problem, head_dim=D, head_dim_v=D, causal=True)
    arrays = inputs(problem)
    outputs, happened = run(problem, config, arrays, Mode(checked=True))
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    (work,), counted = MMA_TF32.work(problem, config, gpu("sm_90a")), happened.counters
    assert work.mma == work.tf32 == counted.mma_m16n8k8_tf32 / 2
    assert work.l2_bytes == counted.global_read_bytes + counted.global_write_bytes
    assert counted.bank_conflicts == 0
    assert counted.barriers == work.barriers or config.d_warps > 1


@PRECISIONS
@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_the_default_is_right_for_every_kind_of_input(problem: Problem, kind: str) -> None:
    arrays = inputs(problem, kind)
    outputs, _ = run(problem, MMA_TF32.default(problem, ARCHES["sm_90a"]), arrays, Mode())
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_two_terms_are_as_exact_as_arithmetic_in_fp32(kind: str) -> None:
    arrays, naive = inputs(FP32, kind), operators.implementation("flash_attention", "naive")
    exact = OPERATOR.reference(FP32, arrays)
    outputs, _ = run(FP32, MMA_TF32.default(FP32, ARCHES["sm_90a"]), arrays, Mode())
    plain, _ = emulator.run(Instance.default(OPERATOR, naive, FP32, ARCHES["sm_90a"]), arrays, Mode())
    for name in ("o", "lse"):
        assert distance(outputs[name], exact[name])[0] < max(2 * distance(plain[name], exact[name])[0], 5e-7)


def test_sums_over_thousands_of_keys_have_no_bias() -> None:
    """Tensor cores cut sums off: accumulated there alone, o was 7e-5 too small."""
    problem = replace(FP32, kv_heads=2, seq_q=16, seq_k=2048)
    arrays = inputs(problem)
    arrays["v"] = np.abs(arrays["v"])
    outputs, _ = run(problem, MMA_TF32.default(problem, ARCHES["sm_90a"]), arrays, Mode())
    assert abs(np.mean(outputs["o"] / OPERATOR.reference(problem, arrays)["o"] - 1)) < 1e-6


@pytest.mark.parametrize("case", ["d24_query_in_registers", "d72_rounded_on_arrival", "d96_padded"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_nan_reaches_what_attends_it(case: str, name: str) -> None:
    """0x7fffffff is what a GPU makes; adding half of a tf32's last bit to it gives a zero."""
    problem, D, config = CASES[case]
    problem = replace(problem, head_dim=D, head_dim_v=D, causal=True)
    arrays = inputs(problem)
    arrays[name].view(np.uint32)[0, 1, 0, 3] = 0x7FFFFFFF
    outputs, _ = run(problem, config, arrays, Mode(checked=True))
    nan = np.isnan(outputs["o"])
    assert nan[0, 1, 0, 3]
    assert nan.any(axis=-1).sum() == (1 if name == "q" else 2 * problem.seq_q)


@PRECISIONS
def test_packed_sequences_with_capped_scores_are_right(problem: Problem) -> None:
    problem = replace(problem, use_cu_seqlens=True, use_softcap=True, causal=True, boundaries=4)
    arrays = inputs(problem)
    outputs, happened = run(problem, BASE, arrays, Mode())
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize("precision", ["dtype", "tf32"])
@pytest.mark.filterwarnings("ignore:flash_attention runs mma_tf32 with its default config")
def test_the_dispatcher_serves_fp32_arrays(precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TUNER_DB", "TUNER_GPU", "TUNER_STRICT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # no records of others
    monkeypatch.setattr(dispatcher.functions, "_dispatcher", None)
    arrays = inputs(FP32)
    o, lse = dispatcher.flash_attention(*(arrays[name] for name in "qkv"), precision=precision)
    error, _ = distance(o, OPERATOR.reference(FP32, arrays)["o"])
    assert o.dtype == np.float32
    assert lse.shape == (1, 2, 70)
    assert (error < 1e-6) == (precision == "dtype")
    assert error < 1e-3


def test_two_terms_are_predicted_to_take_three_times_the_tensor_cores() -> None:
    h200, large = gpu("H200"), replace(FP32, batch=4, heads=16, seq_q=4096, seq_k=4096)
    config = replace(BASE, BM=128)
    one, two = (
        uncompiled(MMA_TF32.plan(instance, config), MMA_TF32.work(instance, config, h200), h200)
        for instance in (replace(large, precision=Precision.TF32), large)
    )
    assert float(two.terms["tensor"]) == pytest.approx(3 * float(one.terms["tensor"]), rel=1e-4)
    assert two.cost > one.cost


DIMS = (16, 40, 64, 72, 80, 96, 128, 160, 192, 256)
DEALT = [(problem, i, D) for problem, dims in ((FP32, DIMS), (TF32, DIMS[::2])) for i, D in enumerate(dims)]


@pytest.mark.parametrize(("problem", "i", "D"), DEALT)
@pytest.mark.slow
def test_defaults_never_spill(problem: Problem, i: int, D: int) -> None:
    """Every head_dim with two terms and every second with one; arches and masks are dealt out."""
    arch = ("sm_80", "sm_90a", "sm_100a", "sm_120a")[i % 4]
    causal = replace(problem, head_dim=D, head_dim_v=D, causal=(i // 4 + (problem is TF32)) % 2 == 1)
    assert_no_spills(OPERATOR, MMA_TF32, causal, arch)
