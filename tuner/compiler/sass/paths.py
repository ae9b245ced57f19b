"""The way through machine code that runs most: its products and accesses, without the detours that have neither."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.compiler.sass.decode import Instruction, Loop, decode, mix_of, span, successors, work_mix
from tuner.compiler.sass.fields import BYTES

_MATRIX = frozenset({"HMMA", "HGMMA", "IMMA", "DMMA", "QMMA", "UTCHMMA"})
_ACCESSES = frozenset({"LDS", "LDSM", "LDG", "LD", "LDGSTS", "STS", "STSM", "STG", "ST", "UTMALDG", "UBLKCP"})


@dataclass(frozen=True, slots=True)
class Path:
    """Indices of instructions in the order in which one pass executes them."""

    indices: tuple[int, ...]
    repeats: bool  # the last one branches back to the first


def paths(code: Sequence[Instruction]) -> tuple[Path, ...]:
    """The kernel from its start to its end, then each of its loops; loops inside a path are passed once.

    Of all ways it is one with the most products, then accesses, then the fewest instructions: so what only hides
    scores or scales sums is left out, and what handles a rare case with accesses of its own is not.
    """
    ends = [index for index, each in enumerate(code) if each.mnemonic == "EXIT" and each.always]
    back = {each.target: index for index, each in enumerate(code) if each.target is not None and each.target < index}
    spans = [(0, ends[-1], False)] if ends else []
    spans += [(first, last, True) for first, last in sorted(back.items())]
    found = (Path(common_way(code, first, last), repeats) for first, last, repeats in spans)
    return tuple(path for path in found if path.indices)


def is_detour(back: Path, code: Sequence[Instruction]) -> bool:
    """Whether a way back is none of a loop: its end is reached past its start, as rare cases are, behind all others."""
    start, end = back.indices[0], back.indices[-1]
    reached = {0}
    for index in range(end):
        if index in reached and index != start:
            reached.update(successors(code, index))
    return start > 0 and end in reached


def pass_mix(code: bytes, loop: Loop, arch: str) -> Mapping[str, float]:
    """Instructions by class of one pass of a loop along its common way; nothing where ptxas laid the way outside."""
    inside = decode(span(code, loop), arch)
    return work_mix(mix_of((inside[index].word for index in common_way(inside, 0, len(inside) - 1)), arch))


def mix_around(code: bytes, loop: Loop, arch: str) -> Mapping[str, float]:
    """Likewise of the common way through the whole kernel, without what lies inside the loop."""
    instructions = decode(code, arch)
    inside = range(loop.start // BYTES, loop.stop // BYTES + 1)
    once = (index for path in paths(instructions) if not path.repeats for index in path.indices)
    return work_mix(mix_of((instructions[index].word for index in once if index not in inside), arch))


def common_way(code: Sequence[Instruction], first: int, last: int) -> tuple[int, ...]:
    """The path from `first` to `last`; nothing where no way between them leads there."""
    best: dict[int, tuple[int, int, int]] = {last: (0, 0, 0)}
    following: dict[int, int] = {}
    for index in range(last - 1, first - 1, -1):
        ways = [to for to in successors(code, index) if to in best]  # further down, and no further than `last`
        if ways:
            following[index] = to = max(ways, key=lambda way: best[way])
            products, accesses, length = best[to]
            name = code[index].mnemonic
            best[index] = (products + (name in _MATRIX), accesses + (name in _ACCESSES), length - 1)
    return tuple(_walk(following, first, last)) if first in best else ()


def _walk(following: dict[int, int], first: int, last: int) -> Iterator[int]:
    index = first
    while index != last:
        yield index
        index = following[index]
    yield last
