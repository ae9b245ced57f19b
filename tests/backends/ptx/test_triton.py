"""Tests of the PTX interpreter on the output of Triton's compiler."""

import re

import numpy as np
import pytest

pytest.importorskip("triton", minversion="3.9", reason="needs triton: pip install 'kerntune[triton]'")

import ml_dtypes

from tests.backends.ptx.triton_programs import (
    Executed,
    Launch,
    attention,
    boxed,
    executed,
    pipelined,
    product,
    reductions,
    self_boxed,
)
from tuner.backends import ptx

DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


@pytest.fixture(autouse=True)
def a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def integers(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small ones: exact in every type, and so are their products' sums."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(DTYPES[dtype])


def multiplied(dtype: str, m: int, n: int, k: int, majors: str, computed: bool, launch: Launch) -> Executed:
    """Run `product` and judge it. `majors`: R or C for A and B, rows or columns."""
    a, b = integers(0, (m, k), dtype), integers(1, (k, n), dtype)
    left, right = (np.ascontiguousarray(x.T if column == "C" else x) for x, column in zip((a, b), majors, strict=True))
    arrays = {"a": left, "b": right, "c": np.zeros((m, n), np.float32)}
    columns = {"COLUMN_A": majors[0] == "C", "COLUMN_B": majors[1] == "C", "COMPUTED_A": computed}
    result = executed(product, arrays, launch, M=m, N=n, K=k, **columns)
    exact = a.astype(np.float32) @ b.astype(np.float32) * (2 if computed else 1)
    np.testing.assert_array_equal(result.arrays["c"], exact)
    return result


WARP_PRODUCTS = {  # (type, layouts of A and B): the instruction that brings a tile into registers
    ("bf16", "RR"): "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
    ("fp16", "CC"): "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
    ("bf16", "RC"): "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    ("tf32", "RC"): "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    ("tf32", "CR"): "ld.shared.",
}


@pytest.mark.parametrize(("dtype", "majors"), WARP_PRODUCTS)
def test_mma_finds_the_fragments_that_triton_loads(dtype: str, majors: str) -> None:
    result = multiplied(dtype, 32, 32, 32, majors, False, Launch(arch=80))
    assert WARP_PRODUCTS[dtype, majors] in result.ptx
    assert f"mma.sync.aligned.m16n8k{8 if dtype == 'tf32' else 16}.row.col.f32." in result.ptx


def test_mma_of_8_bit_floats_finds_their_fragments() -> None:
    assert "m16n8k32.row.col.f32.e4m3" in multiplied("e4m3", 32, 32, 64, "RC", False, Launch(arch=89)).ptx


GROUP_PRODUCTS = [  # type, N, K, layouts, spans of the swizzles of A and B in bytes
    ("bf16", 16, 16, "RR", (32, 32)),
    ("fp16", 16, 16, "CC", (128, 32)),
    ("fp16", 32, 32, "RR", (64, 64)),
    ("bf16", 32, 32, "CC", (128, 64)),
    ("bf16", 64, 64, "RR", (128, 128)),
    ("fp16", 64, 64, "CR", (128, 128)),
    ("bf16", 128, 32, "RR", (64, 128)),
    ("fp16", 256, 16, "RR", (32, 128)),
    ("tf32", 32, 16, "RC", (64, 64)),
    ("e4m3", 64, 64, "RC", (64, 64)),
    ("e5m2", 16, 32, "RC", (32, 32)),
]


@pytest.mark.parametrize(("dtype", "n", "k", "majors", "spans"), GROUP_PRODUCTS)
def test_wgmma_finds_the_tiles_that_tritons_descriptors_describe(
    dtype: str, n: int, k: int, majors: str, spans: tuple[int, int]
) -> None:
    result = multiplied(dtype, 64, n, k, majors, False, Launch())
    assert f"wgmma.mma_async.sync.aligned.m64n{n}k" in result.ptx
    assert {int(span) for span in re.findall(r"swizzlingByteWidth = (\d+)", result.layouts)} == {*spans}


@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_wgmma_takes_a_from_registers(dtype: str) -> None:
    result = multiplied(dtype, 64, 64, 32, "RC", True, Launch())
    assert re.search(r"wgmma\.mma_async\S* \{[^}]*\}, \{", result.ptx)


TENSOR_PRODUCTS = [  # type, M, N, K, layouts, spans of the swizzles of A and B in bytes
    ("bf16", 64, 16, 16, "RR", (32, 32)),
    ("fp16", 128, 16, 16, "CC", (128, 32)),
    ("bf16", 64, 32, 32, "CC", (128, 64)),
    ("fp16", 128, 64, 64, "RR", (128, 128)),
    ("bf16", 128, 128, 32, "RC", (64, 64)),
    ("fp16", 64, 256, 16, "RR", (32, 128)),
    ("tf32", 128, 32, 16, "RC", (64, 64)),
    ("tf32", 64, 64, 32, "RC", (128, 128)),
    ("e4m3", 128, 64, 64, "CR", (128, 64)),
    ("e4m3", 64, 64, 64, "RC", (64, 64)),
    ("e5m2", 128, 16, 32, "RC", (32, 32)),
]
KINDS = {"bf16": "f16", "fp16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4"}


@pytest.mark.parametrize(("dtype", "m", "n", "k", "majors", "spans"), TENSOR_PRODUCTS)
def test_tcgen05_finds_the_tiles_that_tritons_descriptors_describe(
    dtype: str, m: int, n: int, k: int, majors: str, spans: tuple[int, int]
) -> None:
    result = multiplied(dtype, m, n, k, majors, False, Launch(arch=100))
    assert f"tcgen05.mma.cta_group::1.kind::{KINDS[dtype]} " in result.ptx
    assert f"tcgen05.ld.sync.aligned.{'32x32b' if m == 128 else '16x32bx2'}.x" in result.ptx
    assert {int(span) for span in re.findall(r"swizzlingByteWidth = (\d+)", result.layouts)} == {*spans}


@pytest.mark.parametrize("order", ptx.ORDERS)
@pytest.mark.parametrize(("dtype", "m"), [("bf16", 128), ("fp16", 64), ("tf32", 128)])
def test_tcgen05_takes_a_from_tensor_memory(dtype: str, m: int, order: ptx.Order) -> None:
    result = multiplied(dtype, m, 64, 64, "RC", True, Launch(arch=100, order=order))
    assert re.search(r"tcgen05\.mma\S* \[[^\]]*\], \[", result.ptx)


M, N, K = 80, 144, 112  # tails of every tile below


def judged(kernel: object, launch: Launch, block: tuple[int, int, int], dtype: str = "bf16", **more: float) -> str:
    """The PTX of a kernel that multiplies [M, K] by [K, N], once its product was found to be exact."""
    a, b = integers(0, (M, K), dtype), integers(1, (K, N), dtype)
    grid = (-(-M // block[0]), -(-N // block[1]), 1)
    to = np.zeros((M, N), np.float32 if kernel is pipelined else a.dtype)
    launch = Launch(launch.arch, grid, launch.warps, launch.stages, launch.order, launch.boxes)
    numbers = dict(zip(("BM", "BN", "BK"), block, strict=True)) | more
    result = executed(kernel, {"a": a, "b": b, "c": to}, launch, **numbers)
    exact = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(result.arrays["c"], exact.astype(to.dtype))
    return result.ptx


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_tiles_that_cp_async_brings_ahead_are_there_when_they_are_waited_for(arch: int) -> None:
    text = judged(pipelined, Launch(arch, stages=3), (64, 32, 32), m=M, n=N, k=K)
    assert "cp.async.wait_group" in text


@pytest.mark.parametrize("order", ptx.ORDERS)
@pytest.mark.parametrize(("arch", "rows"), [(90, 64), (100, 64), (100, 128)])
def test_boxes_of_tma_reach_tensor_cores_and_return(arch: int, rows: int, order: ptx.Order) -> None:
    boxes = {"a": (rows, 64), "b": (64, 64), "c": (rows, 64)}
    launch = Launch(arch, stages=3, order=order, boxes=boxes)
    text = judged(boxed, launch, (rows, 64, 64), k=K, SPECIALIZED=False)
    assert "cp.async.bulk.tensor.2d" in text


@pytest.mark.parametrize(("width", "dtype"), [(16, "bf16"), (32, "fp16")])
def test_boxes_of_tma_are_swizzled_over_their_width(width: int, dtype: str) -> None:
    boxes = {"a": (64, width), "b": (width, width), "c": (64, width)}
    judged(boxed, Launch(boxes=boxes), (64, width, width), dtype, k=K, SPECIALIZED=False)


@pytest.mark.parametrize(("arch", "order"), [(90, "together"), (100, "together"), (100, "first"), (100, "last")])
def test_warps_that_copy_and_warps_that_multiply_keep_step_by_mbarriers(arch: int, order: ptx.Order) -> None:
    rows = 128 if arch == 100 else 64
    boxes = {"a": (rows, 64), "b": (64, 64), "c": (rows, 64)}
    launch = Launch(arch, stages=3, order=order, boxes=boxes)
    assert "setmaxnreg" in judged(boxed, launch, (rows, 64, 64), k=K, SPECIALIZED=True)


@pytest.mark.parametrize("arch", [90, 100])
def test_tma_follows_the_maps_that_a_kernel_writes(arch: int) -> None:
    assert "tensormap.replace" in judged(self_boxed, Launch(arch), (64, 64, 64), m=M, n=N, k=K)


ATTENTION = [(80, 32, "together"), (90, 64, "together"), *((100, 64, order) for order in ptx.ORDERS)]


@pytest.mark.parametrize(("arch", "head_dim", "order"), ATTENTION)
@pytest.mark.parametrize("rows", [64, 128])
def test_attention_in_tritons_language_is_what_numpy_computes(
    arch: int, head_dim: int, order: ptx.Order, rows: int
) -> None:
    t, random = 77, np.random.default_rng(0)
    q, k, v = (random.standard_normal((t, head_dim)).astype(ml_dtypes.bfloat16) for _ in range(3))
    arrays = {"q": q, "k": k, "v": v, "o": np.zeros((t, head_dim), np.float32)}
    scale = head_dim**-0.5
    blocks = {"D": head_dim, "BM": rows, "BN": 32}
    launch = Launch(arch, (2, 1, 1), order=order)
    result = executed(attention, arrays, launch, t=t, scale=scale * 1.4426950408889634, **blocks)
    q, k, v = (tensor.astype(np.float64) for tensor in (q, k, v))
    scores = np.where(np.tri(t, dtype=bool), q @ k.T * scale, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    exact = weights / weights.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(result.arrays["o"], exact, atol=6e-3)  # weights are rounded to bf16: 2^-9 of their sum


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_scans_sorts_and_atomics_find_their_lanes(arch: int) -> None:
    n, bins = 256, 32
    x = np.random.default_rng(0).permutation(n).astype(np.float32) - 100
    empty = np.zeros(n, np.float32)
    arrays = {"x": x, "sums": empty, "ordered": empty, "bins": np.zeros((2, bins), np.float32)}
    result = executed(reductions, arrays, Launch(arch), N=n, BINS=bins).arrays
    rows = x.reshape(-1, bins)
    np.testing.assert_array_equal(result["sums"], np.cumsum(x))
    np.testing.assert_array_equal(result["ordered"], np.sort(x))
    np.testing.assert_array_equal(result["bins"], [rows.sum(0), np.maximum(rows.max(0), 0)])
