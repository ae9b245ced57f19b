"""Tests of wmma on the PTX interpreter: tiles of any address, layout and shape."""

import numpy as np
import pytest

from tuner.backends.ptx import FaultError, Global, Shape, launch, parse

# One warp: D = A B + C, of dense matrices in global memory.
KERNEL = """
.target sm_80
.visible .entry kernel(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{
  .reg .b32 %a<9>; .reg .b32 %b<9>; .reg .b32 %c<9>; .reg .b32 %d<9>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  ld.param.u64 %rd3, [c];
  ld.param.u64 %rd4, [d];
  wmma.load.a.sync.aligned.{a_layout}.{shape}.global.{kind} {{{a}}}, [%rd1], {a_stride};
  wmma.load.b.sync.aligned.{b_layout}.{shape}.global.{kind} {{{b}}}, [%rd2], {b_stride};
  wmma.load.c.sync.aligned.row.{shape}.global.{sums} {{{c}}}, [%rd3];
  wmma.mma.sync.aligned.{a_layout}.{b_layout}.{shape}.{kinds} {{{d}}}, {{{a}}}, {{{b}}}, {{{c}}};
  wmma.store.d.sync.aligned.{d_layout}.{shape}.global.{sums} [%rd4], {{{d}}}, {d_stride};
  ret;
}}
"""
DTYPES = {"f16": np.float16, "s8": np.int8, "f32": np.float32, "s32": np.int32}
SHAPES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]


def registers(name: str, count: int) -> str:
    return ", ".join(f"%{name}{i}" for i in range(count))


def product(
    m: int, n: int, k: int, kind: str, sums: str, layouts: str, start: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(D of the interpreter, D of NumPy) for layouts of A, B and D, each r or c."""
    rng, names = np.random.default_rng(0), {"r": "row", "c": "col"}
    a, b = (rng.integers(-8, 9, shape).astype(DTYPES[kind]) for shape in ((m, k), (k, n)))
    c = rng.integers(-8, 9, (m, n)).astype(DTYPES[sums])
    stored = [matrix if layout == "r" else matrix.T for matrix, layout in zip((a, b), layouts[:2], strict=True)]
    sizes = {"a": a.nbytes + 64, "b": b.nbytes, "c": c.nbytes, "d": c.nbytes}
    memory = Global(sizes, frozenset({"d"}))
    for name, matrix in zip("abc", (*stored, c), strict=True):
        memory.view(name, matrix.dtype, matrix.shape)[...] = matrix
    multiplicands = {"f16": (8, 8), "s8": (m // 8, n // 8)}[kind]
    counts = dict(zip("abcd", (*multiplicands, *[8 if DTYPES[sums]().nbytes == 4 else 4] * 2), strict=True))
    text = KERNEL.format(
        **{name: registers(name, count) for name, count in counts.items()},
        **{f"{name}_layout": names[layout] for name, layout in zip("abd", layouts, strict=True)},
        a_stride=stored[0].shape[1],
        b_stride=stored[1].shape[1],
        d_stride=n if layouts[2] == "r" else m,
        shape=f"m{m}n{n}k{k}",
        kind=kind,
        kinds=f"{sums}.{sums}" if kind == "f16" else f"{sums}.{kind}.{kind}.{sums}",
        sums=sums,
    )
    addresses = [memory.address(name) for name in "abcd"]
    launch(parse(text)["kernel"], Shape((1, 1, 1), 32, 0), memory, [addresses[0] + start, *addresses[1:]])
    result = memory.view("d", c.dtype, c.shape if layouts[2] == "r" else c.shape[::-1])
    wide = np.int64 if kind == "s8" else np.float64
    return result if layouts[2] == "r" else result.T, a.astype(wide) @ b.astype(wide) + c


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layouts", ["rrr", "ccc", "rcr"])
@pytest.mark.parametrize("sums", ["f32", "f16"])
def test_a_product_of_tiles_is_exact(shape: tuple[int, int, int], layouts: str, sums: str) -> None:
    result, exact = product(*shape, "f16", sums, layouts)
    np.testing.assert_array_equal(result, exact)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_of_integers_is_exact(shape: tuple[int, int, int]) -> None:
    result, exact = product(*shape, "s8", "s32", "rcr")
    np.testing.assert_array_equal(result, exact)


def test_an_address_that_no_fragment_may_begin_at_is_a_fault() -> None:
    with pytest.raises(FaultError, match="must be a multiple of 32 bytes"):
        product(16, 16, 16, "f16", "f32", "rrr", start=16)
