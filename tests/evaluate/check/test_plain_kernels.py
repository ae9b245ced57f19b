"""Tests of unmodified kernels with NVIDIA's headers and inline PTX, executed as PTX."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tuner.backends.ptx import ORDERS, FaultError, Global, Order, Shape, launch, parse
from tuner.compiler import headers, nvrtc
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.results.attempt import Failed

Arrays = dict[str, np.ndarray]
FOLDER = Path(__file__).parent / "plain"
LACKING = headers.lacking()
pytestmark = pytest.mark.skipif("cuda_fp16.h" in LACKING, reason="needs the headers of CUDA")
needs_library = pytest.mark.skipif("cuda/std/cstdint" in LACKING, reason="needs nvidia-cuda-cccl")
needs_wmma = pytest.mark.skipif("crt/mma.h" in LACKING, reason="needs nvidia-cuda-crt")


def run(
    name: str,
    entry: str,
    arrays: Mapping[str, np.ndarray],
    values: tuple[int, ...],
    grid: tuple[int, int, int],
    order: Order,
    arch: str = "sm_80",
    edits: Sequence[tuple[str, str]] = (),
) -> Arrays:
    """The arrays after a launch of blocks of 128 threads that takes them, and numbers."""
    source = (FOLDER / name).read_text()
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    text = nvrtc.ptx(Source((entry,), source, (), "cuda"), Options(arch))
    assert not isinstance(text, Failed), text.log
    kernel = parse(text)[entry]
    sizes = {name: array.nbytes for name, array in arrays.items()}
    memory = Global(
        sizes | {table.key: len(table.data) for table in kernel.tables}, frozenset({*sizes, "the module's d_blocks"})
    )
    for key, array in arrays.items():
        memory.view(key, array.dtype, array.shape)[...] = array
    for table in kernel.tables:
        memory.view(table.key, np.uint8, (len(table.data),))[...] = np.frombuffer(table.data, np.uint8)
    launch(
        kernel,
        Shape(grid, 128, 0),
        memory,
        [*map(memory.address, arrays), *map(np.int32, values)],
        order=order,
        races=True,
    )
    return {name: memory.view(name, array.dtype, array.shape).copy() for name, array in arrays.items()}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def product(rng: np.random.Generator, m: int, n: int, k: int, out: type) -> tuple[Arrays, np.ndarray]:
    """Small integers, so that sums are exact."""
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    return {"a": a, "b": b, "c": np.full((m, n), np.nan, out)}, a.astype(float) @ b.astype(float)


@pytest.mark.parametrize("order", ORDERS)
def test_a_product_by_inline_ptx_is_exact(order: Order, rng: np.random.Generator) -> None:
    arrays, exact = product(rng, 100, 64, 64, np.float16)
    np.testing.assert_array_equal(run("gemm.cu", "gemm", arrays, (100,), (2, 1, 1), order)["c"], exact)


def test_a_copy_that_nobody_waited_for_is_seen(rng: np.random.Generator) -> None:
    arrays, exact = product(rng, 100, 64, 64, np.float16)
    result = run("gemm.cu", "gemm", arrays, (100,), (2, 1, 1), "together", edits=[("CP_WAIT(0)", "CP_WAIT(2)")])
    assert not np.array_equal(result["c"], exact)


@pytest.mark.parametrize(
    ("edit", "race"),
    [
        (("    __syncthreads();\n    const int stage", "    const int stage"), "reads byte .* wrote"),
        (("    __syncthreads();\n  }\n", "  }\n"), "writes byte .* read"),
    ],
    ids=["before", "behind"],
)
def test_a_barrier_that_is_missing_on_either_side_of_a_step_is_a_race(
    edit: tuple[str, str], race: str, rng: np.random.Generator
) -> None:
    arrays, _ = product(rng, 100, 64, 64, np.float16)
    deeper = [edit, ("#define BK 32", "#define BK 16")]  # a third step, whose copy takes the place of the first
    with pytest.raises(FaultError, match=f"race: warp . {race}"):
        run("gemm.cu", "gemm", arrays, (100,), (2, 1, 1), "together", edits=deeper)


def test_a_row_too_many_is_a_fault(rng: np.random.Generator) -> None:
    arrays, _ = product(rng, 100, 64, 64, np.float16)
    with pytest.raises(FaultError, match=r"beyond its end .*st\.global"):
        run("gemm.cu", "gemm", arrays, (100,), (2, 1, 1), "together", edits=[("if (row < m)", "if (row <= m)")])


@needs_wmma
@pytest.mark.parametrize("order", ORDERS)
def test_a_product_by_wmma_is_exact(order: Order, rng: np.random.Generator) -> None:
    arrays, exact = product(rng, 40, 70, 50, np.float32)
    result = run("wmma.cu", "gemm_wmma", arrays, (40, 70, 50), (2, 2, 1), order)
    np.testing.assert_array_equal(result["c"], 2 * exact)


@pytest.mark.sampled(1)
@needs_library
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_softmax_by_cooperative_groups_is_right(arch: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 77)).astype(ml_dtypes.bfloat16)
    result = run("softmax.cu", "softmax", {"x": x, "y": np.zeros_like(x)}, (5, 77), (2, 1, 1), "together", arch)["y"]
    exact = np.exp(x.astype(float))
    np.testing.assert_allclose(result.astype(float), exact / exact.sum(1, keepdims=True), rtol=2.0**-8)


@pytest.mark.sampled(1)
@needs_library
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_the_headers_bring_is_what_they_say(arch: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(256).astype(np.float32)
    x[3] = x[35] = 0
    outputs: Arrays = {
        "q": np.zeros(256, np.int8),
        "q8": np.zeros(256, ml_dtypes.float8_e4m3fn),
        "scale": np.zeros(8, np.float32),
        "sums": np.zeros(256, np.float32),
        "dots": np.zeros(256, np.int32),
        "halves": np.zeros(2, np.float16),
        "bf16s": np.zeros(2, ml_dtypes.bfloat16),
    }
    result = run("quantize.cu", "quantize", {"x": x, **outputs}, (), (2, 1, 1), "together", arch)
    warps = x.reshape(-1, 32)
    scale = np.abs(warps).max(1) / np.float32(127)
    q = np.rint(warps / scale[:, None]).astype(np.int32)
    np.testing.assert_array_equal(result["scale"], scale)
    np.testing.assert_array_equal(result["q"], q.reshape(-1))
    np.testing.assert_array_equal(result["q8"], x.astype(ml_dtypes.float8_e4m3fn))
    wide = x.astype(float)
    np.testing.assert_allclose(result["sums"], 3.5 * wide + np.sin(wide) + np.abs(wide) ** 1.5, rtol=1e-5, atol=1e-6)
    other = q.reshape(-1, 8)[:, ::-1].reshape(-1)
    digits = [
        sum(np.int32(instruction).tobytes(), 0) - 256 * sum(b > 127 for b in np.int32(instruction).tobytes())
        for instruction in other
    ]
    same = (q[:, :, None] == q[:, None, :]).sum(2).reshape(-1)
    lowest = [(int(instruction) & -int(instruction)).bit_length() for instruction in other]
    np.testing.assert_array_equal(result["dots"], digits + q.reshape(-1) + same + lowest)
    assert result["halves"].tolist() == result["bf16s"].tolist() == [256, (x > 0).sum()]
