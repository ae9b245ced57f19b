"""What a warp of streaming_attention/mma_sync issues for one tile of keys, on each path through its main loop.

python benchmarks/streaming_paths.py

Counted in the machine code of the defaults, and of the same without narrow spans. A path goes once around the loop,
copies the next tiles and scales no sums. `+ sinks` and `+ window` is what hiding scores adds to it: those behind the
sinks, those outside of a window. `once` is the code around the loop. `W+S` is what a warp issues in its main loop for
each row (a query of a head) with window W and S sinks, far from the start of a sequence. Nothing here is a time.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from attention_slots import MATRIX, loops

from tuner import operators
from tuner.arch import ARCHES
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.sass import decode as sass
from tuner.compiler.sass.decode import Instruction
from tuner.compiler.toolkit import Options
from tuner.spec.instance import Instance

OPERATOR = operators.load("streaming_attention")
KERNEL = operators.implementation("streaming_attention", "mma_sync")
WINDOWS = ((64, 4), (128, 4), (256, 4), (512, 16), (1024, 4), (4096, 64))


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block: what it holds, and the blocks that follow it within the loop."""

    held: Counter[str]
    followers: tuple[int, ...]

    @property
    def hides(self) -> bool:
        return self.held["FSEL"] > 8

    @property
    def scales(self) -> bool:
        return self.held["FMUL"] > 8


@dataclass(frozen=True, slots=True)
class Path:
    """Matrix products of each block with some, copies, blocks that hide scores, and whether sums are scaled."""

    products: tuple[int, ...] = ()
    copies: int = 0
    hides: tuple[int, ...] = ()
    scales: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Instructions issued for the keys that a warp takes of a tile: at least, and more to hide scores."""

    products: int
    bare: int
    sinks: int
    window: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 72, 128])
    parser.add_argument("--arches", nargs="+", default=["sm_80", "sm_90a", "sm_120a"])
    parser.add_argument("--packed-heads", type=int, default=1)
    given = parser.parse_args()
    windows = " | ".join(f"{window}+{sinks}" for window, sinks in WINDOWS)
    print(f"| D | arch | once | loop | keys: products, issued + sinks + window | {windows} |")
    print("|---" * (5 + len(WINDOWS)) + "|")
    for D in given.head_dims:
        for arch in given.arches:
            default = KERNEL.default(OPERATOR.problem(head_dim=D), ARCHES[arch])
            default = replace(default, packed_heads=given.packed_heads)
            for config in (default, replace(default, narrow=0)):
                print(row(D, arch, config))


def row(D: int, arch: str, config: Any) -> str:
    once, loop, spans = spans_of(D, arch, config)
    texts = (f"{width}: {span.products}, {span.bare} + {span.sinks} + {span.window}" for width, span in spans.items())
    queries = (issued_a_row(config, spans, *each) for each in WINDOWS)
    return f"| {D} | {arch} | {once} | {loop} | {'; '.join(texts)} | {' | '.join(f'{each:.0f}' for each in queries)} |"


def spans_of(D: int, arch: str, config: Any) -> tuple[int, int, dict[int, Span]]:
    """Instructions outside of the main loop and within, and its spans by their number of keys."""
    cubin = nvrtc.compile(render(Instance(OPERATOR, KERNEL, OPERATOR.problem(head_dim=D), config)), Options(arch))
    assert isinstance(cubin, Cubin), cubin
    code = cubin.code("streaming_attention_mma_sync")
    blocks = blocks_of(code, arch)
    found = paths(blocks, 0)
    copies = max(path.copies for path in found)
    steady = {path: issued for path, issued in found.items() if path.copies == copies and not path.scales}
    whole = max((path.products for path in steady), key=sum)
    widths = (config.BN, config.narrow) if config.narrow else (config.BN,)
    spans = {width: span_of(steady, tuple(each * width // config.BN for each in whole)) for width in widths}
    loop = sum(block.held.total() for block in blocks)
    return sum(sass.instruction_mix(code, arch).values()) - loop, loop, spans


def span_of(steady: Mapping[Path, int], products: tuple[int, ...]) -> Span:
    by_hides = {path.hides: issued for path, issued in steady.items() if path.products == products}
    sinks, window = sorted({block for hides in by_hides for block in hides})
    bare = by_hides[()]
    return Span(sum(products), bare, by_hides[(sinks,)] - bare, by_hides[(window,)] - bare)


def blocks_of(code: bytes, arch: str) -> list[Block]:
    """Of the main loop: the shortest with products and exponentials."""
    instructions = sass.decode(code, arch)
    first, last = min(loops(instructions, arch), key=lambda loop: loop[1] - loop[0])
    starts = sorted({first, *boundaries(instructions, first, last)})
    number = {start: index for index, start in enumerate(starts)}
    found = []
    for begin, end in pairwise([*starts, last + 1]):
        jump = instructions[end - 1]
        reached = {jump.target, None if jump.always and jump.target is not None else end}
        followers = tuple(number[each] for each in reached if each in number and each > begin)
        found.append(Block(Counter(each.mnemonic for each in instructions[begin:end]), followers))
    return found


def boundaries(code: Sequence[Instruction], first: int, last: int) -> Iterator[int]:
    for index in range(first, last + 1):
        target = code[index].target
        if target is not None:
            yield index + 1
            if first < target <= last:
                yield target


def paths(blocks: list[Block], start: int, known: dict[int, dict[Path, int]] | None = None) -> dict[Path, int]:
    """The least instructions of each kind of path from a block to the end of the loop."""
    known = {} if known is None else known
    if start not in known:
        block = blocks[start]
        rests = [rest for each in block.followers for rest in paths(blocks, each, known).items()] or [(Path(), 0)]
        known[start] = {}
        for rest, issued in rests:
            path, total = prepend(start, block, rest), issued + block.held.total()
            known[start][path] = min(known[start].get(path, total), total)
    return known[start]


def prepend(index: int, block: Block, rest: Path) -> Path:
    products = sum(block.held[each] for each in MATRIX)
    return Path(
        products=(products, *rest.products) if products else rest.products,
        copies=rest.copies + block.held["LDGSTS"],
        hides=(index, *rest.hides) if block.hides else rest.hides,
        scales=rest.scales or block.scales,
    )


def issued_a_row(config: Any, spans: Mapping[int, Span], window: int, sinks: int) -> float:
    """By all warps of a block whose windows begin far behind the sinks, over its rows."""
    issued, queries = 0, config.rows_per_warp // config.packed_heads
    for first in range(
        0, config.BM // config.packed_heads, queries
    ):  # counted, like keys, from the first window's begin
        for width, key in spans_taken(config, first, first + window + queries - 1):
            cut = key < first + queries - 1 or key + width > first + window
            issued += spans[width].bare + cut * spans[width].window
        for width, key in spans_taken(config, 0, sinks):
            issued += spans[width].bare + (key + width > sinks) * spans[width].sinks
    return issued / config.BM


def spans_taken(config: Any, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Width and first key of what a warp takes of tiles from key 0 on, where it attends keys from begin to end."""
    for tile in range(begin // config.BN * config.BN, end, config.BN):
        first = max(begin - tile, 0) // 16 * 16
        at = min(first, config.BN - config.narrow)
        if config.narrow and min(end - tile, config.BN) <= at + config.narrow:
            yield config.narrow, tile + at
        else:
            yield config.BN, tile


if __name__ == "__main__":
    main()
