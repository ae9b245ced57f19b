"""Kernels in Triton's language, compiled by Triton without a GPU and executed by the PTX interpreter.

Triton's PTX runs on GPUs every day. What the interpreter makes of it says whether it reads the ISA as they do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tuner.backends import ptx
from tuner.backends.ptx.launch import Value
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor

Arrays = Mapping[str, np.ndarray]
_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
_SWIZZLES = (0, 32, 64, 128)  # bytes, by Triton's number


@dataclass(frozen=True)
class Launch:
    """`boxes`: which arguments are tensor maps of an array, and their boxes; other numbers are scalars."""

    arch: int = 90
    grid: tuple[int, int, int] = (1, 1, 1)
    warps: int = 4
    stages: int = 2
    order: ptx.Order = "together"
    boxes: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Executed:
    """What the arrays hold afterwards, and what Triton made of the kernel: its layouts and its PTX."""

    arrays: Arrays
    layouts: str
    ptx: str


def executed(kernel: Any, arrays: Arrays, launch: Launch, **numbers: float) -> Executed:
    """Compile `kernel` and run it. Its arguments bear the names of arrays and of `numbers`; constants are capitals."""
    constants = {name: value for name, value in numbers.items() if name.isupper()}
    boxes = launch.boxes or {}
    compiled = _compiled(kernel, arrays, boxes, numbers, constants, launch)
    text, meta = compiled.asm["ptx"], compiled.metadata
    sizes = {name: array.nbytes for name, array in arrays.items()}
    sizes["scratch"] = max(meta.global_scratch_size * int(np.prod(launch.grid)), 16)
    memory = ptx.Global(sizes, frozenset(sizes))
    for name, array in arrays.items():
        memory.view(name, array.dtype, array.shape)[...] = array
    maps = iter(meta.tensordesc_meta)
    values: list[Value] = []
    for name in (arg_name for arg_name in kernel.arg_names if arg_name not in constants):
        if name in boxes:
            values += _mapped(memory, name, arrays[name], next(maps))
        else:
            values.append(memory.address(name) if name in arrays else _scalar(numbers[name]))
    values += [memory.address("scratch"), 0]  # for maps that the kernel writes; for profiles
    threads = int(re.search(r"\.reqntid (\d+)", text)[1])  # type: ignore[index]
    shape = ptx.Shape(launch.grid, threads, meta.shared)
    ptx.launch(ptx.parse(text)[kernel.__name__], shape, memory, values, order=launch.order, strict=False)
    results = {name: memory.view(name, array.dtype, array.shape).copy() for name, array in arrays.items()}
    return Executed(results, compiled.asm["ttgir"], text)


def _compiled(
    kernel: Any,
    arrays: Arrays,
    boxes: Mapping[str, tuple[int, ...]],
    numbers: Mapping[str, float],
    constants: Mapping[str, float],
    launch: Launch,
) -> Any:
    def type_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name not in arrays:
            return "fp32" if isinstance(numbers[name], float) else "i32"
        element = _NAMES[arrays[name].dtype.name]
        return f"tensordesc<{element}{list(boxes[name])}>".replace(" ", "") if name in boxes else f"*{element}"

    def is_aligned(name: str) -> bool:
        """Triton copies asynchronously only what it knows to lie at multiples of 16."""
        return name not in boxes and (name in arrays or (signature[name] == "i32" and numbers[name] % 16 == 0))

    signature = {name: type_of(name) for name in kernel.arg_names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if is_aligned(name)}
    source = ASTSource(kernel, signature=signature, constexprs=dict(constants), attrs=attributes)
    target = GPUTarget("cuda", launch.arch, 32)
    return triton.compile(source, target=target, options={"num_warps": launch.warps, "num_stages": launch.stages})


def _scalar(number: float) -> np.generic:
    return np.float32(number) if isinstance(number, float) else np.int32(number)


def _mapped(memory: ptx.Global, name: str, array: np.ndarray, meta: Mapping[str, Any]) -> list[Value]:
    """A tensor map, then the array's sizes and strides."""
    dtype = DType.of(array.dtype)
    assert dtype is not None
    address, box = memory.address(name), tuple(meta["block_size"])
    tensor = MappedTensor(name, address, dtype, array.shape, array.strides, box, _SWIZZLES[meta["swizzle"]])
    steps = [stride // array.itemsize for stride in array.strides]
    return [tensor, *map(np.int32, array.shape), *map(np.int64, steps)]


@triton.jit
def product(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COLUMN_A: tl.constexpr, COLUMN_B: tl.constexpr,
    COMPUTED_A: tl.constexpr,
):  # fmt: skip
    """c [M, N] = a [M, K] b [K, N], each row- or column-major; a computed `a` comes from registers."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + (m[:, None] + k[None, :] * M if COLUMN_A else m[:, None] * K + k[None, :]))
    y = tl.load(b + (k[:, None] + n[None, :] * K if COLUMN_B else k[:, None] * N + n[None, :]))
    if COMPUTED_A:
        x = (x * 2).to(x.dtype)
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y))


@triton.jit
def pipelined(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c [m, n] = a [m, k] b [k, n] with tails: tiles copied ahead by cp.async."""
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, k, BK):
        at = first + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        y = tl.load(b + at[:, None] * n + columns[None, :], mask=(at[:, None] < k) & (columns[None, :] < n), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def boxed(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPECIALIZED: tl.constexpr):
    """The same with tensor maps that the host made, and a warp that only copies where `SPECIALIZED`."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for first in tl.range(0, k, BK, warp_specialize=SPECIALIZED):
        total = tl.dot(a.load([row, first]), b.load([first, column]), total)
    c.store([row, column], total.to(c.dtype))


@triton.jit
def self_boxed(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same with tensor maps that the kernel writes."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    from_a = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    from_b = tl.make_tensor_descriptor(b, [k, n], [n, 1], [BK, BN])
    to_c = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, k, BK):
        total = tl.dot(from_a.load([row, first]), from_b.load([first, column]), total)
    to_c.store([row, column], total.to(to_c.dtype))


@triton.jit
def attention(q, k, v, o, t, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Causal attention over t tokens, in one pass with a running maximum; `scale` for exponents of 2."""
    m, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    queries = tl.load(q + m[:, None] * D + d[None, :], mask=m[:, None] < t, other=0.0)
    top, weight = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for first in range(0, tl.minimum(t, (tl.program_id(0) + 1) * BM), BN):
        n = first + tl.arange(0, BN)
        keys = tl.load(k + n[None, :] * D + d[:, None], mask=n[None, :] < t, other=0.0)
        values = tl.load(v + n[:, None] * D + d[None, :], mask=n[:, None] < t, other=0.0)
        scores = tl.where((n[None, :] < t) & (n[None, :] <= m[:, None]), tl.dot(queries, keys) * scale, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        p, kept = tl.exp2(scores - higher[:, None]), tl.exp2(top - higher)
        weight = weight * kept + tl.sum(p, 1)
        total = tl.dot(p.to(values.dtype), values, total * kept[:, None])
        top = higher
    tl.store(o + m[:, None] * D + d[None, :], total / weight[:, None], mask=m[:, None] < t)


@triton.jit
def reductions(x, sums, ordered, bins, N: tl.constexpr, BINS: tl.constexpr):
    """Running sums and the sorted values of x [N]; atomic sums and maxima by bin."""
    i = tl.arange(0, N)
    values = tl.load(x + i)
    tl.store(sums + i, tl.cumsum(values))
    tl.store(ordered + i, tl.sort(values))
    tl.atomic_add(bins + i % BINS, values)
    tl.atomic_max(bins + BINS + i % BINS, values)
