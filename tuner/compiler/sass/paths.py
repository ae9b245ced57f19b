"""The most common path through machine code: it has the products and the memory accesses, without rare detours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.compiler.sass.decode import (
    InnermostLoop,
    Instruction,
    innermost_loops,
    instruction_mix,
    successors,
    work_mix,
)

_MATRIX = frozenset({"HMMA", "HGMMA", "IMMA", "DMMA", "QMMA", "UTCHMMA"})
_ACCESSES = frozenset({"LDS", "LDSM", "LDG", "LD", "LDGSTS", "STS", "STSM", "STG", "ST", "UTMALDG", "UBLKCP"})
Code = Sequence[Instruction]


@dataclass(frozen=True, slots=True)
class Path:
    """Indices of instructions in the order in which one pass executes them."""

    indices: tuple[int, ...]
    repeats: bool  # the last instruction branches back to the first

    @property
    def span(self) -> range:
        """From the first to the last index, detours included."""
        return range(self.indices[0], self.indices[-1] + 1)


def paths(code: Code) -> tuple[Path, ...]:
    """The kernel from its start to its end, then each of its loops; a path passes each inner loop once.

    Of all paths it is the one with the most products, then the most accesses, then the fewest instructions. So code
    that only masks scores or rescales sums is left out, and a rare case with accesses of its own is not.
    """
    exits = [index for index, instruction in enumerate(code) if instruction.mnemonic == "EXIT" and instruction.always]
    targets = enumerate(instruction.target for instruction in code)
    back = {target: index for index, target in targets if target is not None and target < index}
    spans = [(0, exits[-1], False)] if exits else []
    spans += [(first, last, True) for first, last in sorted(back.items())]
    all_paths = (Path(common_path(code, first, last), repeats) for first, last, repeats in spans)
    return tuple(path for path in all_paths if path.indices)


def is_detour(path: Path, code: Code) -> bool:
    """Whether a backward branch closes no loop: it returns from a rare case that ptxas placed behind the other code."""
    start, end = path.indices[0], path.indices[-1]
    reached = {0}
    for index in range(end):
        if index in reached and index != start:
            reached.update(successors(code, index))
    return start > 0 and end in reached


def frequent_paths(code: Code) -> tuple[Path, ...]:
    """`paths` without detours."""
    return tuple(path for path in paths(code) if not (path.repeats and is_detour(path, code)))


def steady_mix(code: Code) -> Mapping[str, float]:
    """Instructions by class in one pass of the main loop along its common path; of the whole kernel without a loop.

    The main loop has the most mma. With tcgen05 one thread issues all products in a separate loop: the main loop is
    then the one with the most exponentials.
    """
    if (loop := _main_loop(code)) is None:
        return work_mix(instruction_mix(code))
    return pass_mix(code, loop) or work_mix(loop.mix)


def outer_mix(code: Code) -> Mapping[str, float]:
    """Instructions by class on the common path through the kernel, outside its main loop; nothing without a loop."""
    if (loop := _main_loop(code)) is None:
        return {}
    once = (index for path in paths(code) if not path.repeats for index in path.indices)
    return work_mix(instruction_mix(code[index] for index in once if index not in loop.indices))


def pass_mix(code: Code, loop: InnermostLoop) -> Mapping[str, float]:
    """Instructions by class in one pass of a loop; nothing if ptxas placed part of every path outside the loop."""
    path = common_path(code, loop.indices[0], loop.indices[-1])
    return work_mix(instruction_mix(code[index] for index in path))


def _main_loop(code: Code) -> InnermostLoop | None:
    leading = "mufu" if any(instruction.mnemonic == "UTCHMMA" for instruction in code) else "mma"
    weights = [(work_mix(loop.mix).get(leading, 0.0), loop) for loop in innermost_loops(code)]
    weight, loop = max(weights, key=lambda pair: pair[0], default=(0.0, None))
    return loop if weight else None


def common_path(code: Code, first: int, last: int) -> tuple[int, ...]:
    """The path from `first` to `last`; empty if none stays between them."""
    best: dict[int, tuple[int, int, int]] = {last: (0, 0, 0)}
    following: dict[int, int] = {}
    for index in range(last - 1, first - 1, -1):
        candidates = [successor for successor in successors(code, index) if successor in best]  # forward, up to `last`
        if candidates:
            following[index] = successor = max(candidates, key=best.__getitem__)
            products, accesses, length = best[successor]
            name = code[index].mnemonic
            best[index] = (products + (name in _MATRIX), accesses + (name in _ACCESSES), length - 1)
    return tuple(_follow(following, first, last)) if first in best else ()


def _follow(following: Mapping[int, int], first: int, last: int) -> Iterator[int]:
    index = first
    while index != last:
        yield index
        index = following[index]
    yield last
