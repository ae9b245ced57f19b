"""Tests of wgmma's descriptors in the compiler's PTX against the PTX ISA, independently of the emulator.

Nothing here comes from the emulator or from the primitives but the descriptors themselves. TMA writes a box as the
tables under "Tensor swizzling modes" show it; wgmma reads the canonical layouts of "Matrix descriptor", which the ISA
states in the notation of CuTe; what was written at (row, column) must be read there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from tests.support.claims import compiled
from tuner import operators
from tuner.arch import ARCHES
from tuner.backends.emulator import Buffer, Mode, build
from tuner.compiler.render import header, headers, render
from tuner.compiler.source import Source
from tuner.errors import MachineError
from tuner.operators.flash_attention.operator import Problem
from tuner.spec.instance import Instance

OPERATOR = operators.load("flash_attention")
WGMMA = operators.implementation("flash_attention", "wgmma")
FOLDER = OPERATOR.folder
HEAD_DIMS = (16, 24, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256)
BN = 48  # keys of a tile: a panel of 16 columns then ends off the 1024 bytes of the widest swizzle
BASE = 3 * 1024  # where a tile begins

# "Tensor swizzling modes": which 16-byte chunk of its 128 bytes lies at each place, line by line of 128 bytes.
LINES = {
    32: ("01234567", "10325476"),
    64: ("01234567", "10325476", "23016745", "32107654"),
    128: ("01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210"),
}
# "Matrix descriptor": bits 62 and 63, and the pattern's boundary for a base offset of 0.
MODES = {1: (128, 1024), 2: (64, 512), 3: (32, 256)}

# Words of an instance: panels, then (width, first column, byte offset) of each, then the descriptors.
WORDS = 160
TEXT = """
#include "flash_attention/panels/panels.cuh"
#include "thread.cuh"
template <class P, int kRows>
__device__ unsigned long long* panels(unsigned long long* out) {
  *out++ = P::kCount;
  for (int p = 0; p < P::kCount; ++p) {
    *out++ = P::width(p);
    *out++ = P::column(p);
    *out++ = 2 * kRows * P::column(p);
  }
  return out;
}
template <int kD, int kRows>
__device__ void keys(unsigned long long* out) {
  using P = Panels<(kD + 15) / 16 * 16, 64, false>;
  out = panels<P, kRows>(out);
  for (int k = 0; k < kD; k += 16) *out++ = P::template k_major<kRows>(BASE, k);
}
template <int kD, int kRows, int kColumns>
__device__ void values(unsigned long long* out) {
  using P = Panels<kColumns ? kD : (kD + 15) / 16 * 16, kColumns ? kColumns : 64, kColumns != 0>;
  out = panels<P, kRows>(out);
  for (int p = 0; p < P::kCount; ++p)
    if (p == 0 || P::width(p) != P::width(p - 1))
      for (int k = 0; k < kRows; k += 16) *out++ = P::template mn_major<kRows>(BASE, k, P::column(p));
}
"""


def chunk(address: int, span: int) -> int:
    """The address at which TMA, or wgmma, finds the byte that lies at `address` without a swizzle."""
    line = LINES[span][address // 128 % len(LINES[span])]
    return address // 128 * 128 + 16 * line.index(str(address // 16 % 8)) + address % 16


def written(columns: int, rows: int, panels: list[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    """By address: the (row, column) that TMA puts there. A panel is (width, first column, byte offset of its box)."""
    results = {}
    for width, first, offset in panels:
        for row, col in product(range(rows), range(width)):
            results[chunk(BASE + offset + 2 * (row * width + col), 2 * width)] = (row, first + col)
    assert len(results) == rows * sum(width for width, _, _ in panels) >= rows * columns
    return results


def fields(descriptor: int) -> tuple[int, int, int, int]:
    """(start, leading, stride) in bytes and the swizzle's span; every other bit must be 0."""
    start, leading, stride = (16 * (descriptor >> shift & 0x3FFF) for shift in (0, 16, 32))
    used = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 3 << 62
    assert descriptor & ~used == 0, "reserved bits, and the base offset"
    return start, leading, stride, MODES[descriptor >> 62][0]


def k_major(descriptor: int, mn: int, k: int) -> int:
    """((8, m), (T, 2k)) : ((W T, SBO), (1, T)), for elements of 2 bytes: T = 8, and W chunks a row."""
    start, _, stride, span = fields(descriptor)
    return chunk(start + mn % 8 * span + mn // 8 * stride + 2 * (k % 8) + 16 * (k // 8), span)


def mn_major(descriptor: int, mn: int, k: int) -> int:
    """((T, W, m), (8, k)) : ((1, T, LBO), (W T, SBO)): spans of MN lie LBO apart, groups of 8 k lie SBO apart."""
    start, leading, stride, span = fields(descriptor)
    across = 2 * (mn % 8) + 16 * (mn // 8 % (span // 16)) + leading * (mn // (span // 2))
    return chunk(start + across + k % 8 * span + k // 8 * stride, span)


@dataclass(frozen=True)
class Told:
    """What the kernel's own functions say of one kind of tile."""

    panels: list[tuple[int, int, int]]  # width, first column, byte offset
    descriptors: list[int]


def value_columns(D: int) -> list[int]:
    """The panels of V that the space offers, besides those of several widths."""
    space = WGMMA.space(Problem(head_dim=D), ARCHES["sm_90a"])
    return [int(columns) for columns in np.unique(space.columns.value_columns)]


KEYS = {f"keys<{D}, {rows}>": (D, rows) for D in HEAD_DIMS for rows in (64, BN)}
VALUES = {f"values<{D}, {BN}, {columns}>": (D, columns) for D in HEAD_DIMS for columns in value_columns(D)}


@cache
def told() -> Mapping[str, Told]:
    """By function of TEXT, all in one run."""
    names = (*KEYS, *VALUES)
    calls = "".join(f"  {name}(out + {WORDS * i});\n" for i, name in enumerate(names))
    text = f"#define BASE {BASE}\n{TEXT}"
    text += f'extern "C" __global__ void root(unsigned long long* out) {{\n  if (threadIdx.x) return;\n{calls}}}\n'
    source = Source(("root",), text, headers(text, FOLDER, "host"), "host")
    with Buffer.of("out", np.zeros(WORDS * len(names), np.uint64), writable=True) as out:
        build(source, checked=False).launch("root", (1, 1, 1), 32, 0, [out], Mode())
        rows = out.view(np.uint64, (len(names), WORDS)).tolist()
    return {name: _told(row) for name, row in zip(names, rows, strict=True)}


def _told(words: list[int]) -> Told:
    end = 1 + 3 * words[0]
    panels = [(words[i], words[i + 1], words[i + 2]) for i in range(1, end, 3)]
    return Told(panels, [word for word in words[end:] if word])


@pytest.mark.parametrize("name", KEYS)
def test_scores_read_what_tma_wrote_of_q_and_k(name: str) -> None:
    D, rows = KEYS[name]
    result, memory = told()[name], written(D, rows, told()[name].panels)
    assert len(result.descriptors) == -(-D // 16)
    for step, descriptor in enumerate(result.descriptors):
        for mn, k in product(range(rows), range(16)):
            assert memory[k_major(descriptor, mn, k)] == (mn, 16 * step + k), (step, mn, k)


@pytest.mark.parametrize("name", VALUES)
def test_products_with_values_read_what_tma_wrote_of_v(name: str) -> None:
    D, columns = VALUES[name]
    result, memory = told()[name], written(D, BN, told()[name].panels)
    firsts = sorted({min(c for width, c, _ in result.panels if width == w) for w, _, _ in result.panels})
    assert len(result.descriptors) == len(firsts) * BN // 16
    ends = [*firsts[1:], D if columns else sum(width for width, _, _ in result.panels)]
    for i, descriptor in enumerate(result.descriptors):
        piece, step = divmod(i, BN // 16)
        end = ends[piece]
        for n, k in product(range(end - firsts[piece]), range(16)):
            assert memory[mn_major(descriptor, n, k)] == (16 * step + k, firsts[piece] + n), (i, n, k)


@pytest.mark.parametrize("name", [*KEYS, *VALUES])
def test_every_swizzled_pattern_begins_at_its_boundary(name: str) -> None:
    """Which is what a base offset of 0 says; K-major operands start within a row of the pattern, never below it."""
    boundary = dict(MODES.values())
    starts = {BASE + offset: 2 * width for width, _, offset in told()[name].panels}
    assert all(start % boundary[span] == 0 for start, span in starts.items())
    for descriptor in told()[name].descriptors:
        start, *_, span = fields(descriptor)
        within = start - max(byte for byte in starts if byte <= start)
        assert within < span if name in KEYS else within % boundary[span] == 0


@pytest.mark.parametrize("D", HEAD_DIMS)
def test_boxes_are_within_what_the_driver_documents_for_a_swizzle(D: int) -> None:
    """cuTensorMapEncodeTiled: up to 256 a dim, and an inner row of at most the swizzle's span, whole 16 bytes."""
    problem = Problem(head_dim=D)
    space = WGMMA.space(problem, ARCHES["sm_90a"])
    for index in range(0, len(space), len(space) // 20):
        for tensor_map in WGMMA.plan(problem, space[index]).maps:
            assert all(1 <= size <= 256 for size in tensor_map.box)
            assert 2 * tensor_map.box[-1] == tensor_map.swizzle and tensor_map.swizzle in LINES


@pytest.mark.parametrize("function", ["wgmma_descriptor", "wgmma_advance"])
def test_the_gpu_gets_the_descriptors_that_the_emulator_gets(function: str) -> None:
    texts = [header(name, FOLDER, target) for name, target in (("wgmma.cuh", "cuda"), ("wgmma.cuh", "host"))]
    bodies = [re.search(rf"uint64_t {function}\(.*?\n}}", text, re.DOTALL) for text in texts]
    assert bodies[0] and bodies[1] and bodies[0][0] == bodies[1][0]


@pytest.mark.parametrize(("D", "widths"), [(24, {32}), (72, {64, 16})])
def test_products_with_panels_of_several_widths_end_with_a_panel(D: int, widths: set[int]) -> None:
    """So that none of their descriptors needs an N that ends inside a swizzle's span."""
    problem = Problem(head_dim=D)
    config = replace(WGMMA.default(problem, ARCHES["sm_90a"]), BN=112, value_columns=0)
    cubin = compiled(render(Instance(OPERATOR, WGMMA, problem, config)), "sm_90a")
    mix = cubin.instruction_mix("flash_attention_wgmma")
    products = {int(name.split("x")[1]) for name in mix if name.startswith("HGMMA")}
    assert products == {config.BN} | widths


@pytest.mark.slow
def test_only_the_products_with_values_transpose_b_in_the_machine_code() -> None:
    problem = Problem(head_dim=72)
    config = WGMMA.default(problem, ARCHES["sm_90a"])
    cubin = compiled(render(Instance(OPERATOR, WGMMA, problem, config)), "sm_90a")
    try:
        listing = cubin.disassemble("flash_attention_wgmma")
    except MachineError as error:
        pytest.skip(str(error))
    lines = [line for line in listing.splitlines() if "HGMMA" in line]
    scores = [line for line in lines if f"64x{config.BN}x16" in line]
    values = [line for line in lines if "64x72x16" in line]
    assert scores and values and len(scores) + len(values) == len(lines)
    assert not any("tnsp" in line for line in scores)
    assert all(re.search(r"gdesc\[\w+\]\.tnspB", line) for line in values)
