"""What machine code must not do if its wgmmas are to run beside the softmax: rules on one kernel of a cubin."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.cubin import Cubin
from tuner.sass import Instruction, decode

_SERIALIZED = re.compile(r"\(?(C75\d\d)\)?[^\n]*")  # ptxas's warnings about wgmma
_UNDECIDED = frozenset({"CALL", "RET"})  # where control goes is not in the instruction
_BRX = 0x149  # an indirect branch
_EX2 = 2  # MUFU's function
_NO_BARRIER = 7  # of HGMMA's field for the barrier that the last one of a group names
_MANY = 8  # groups in flight, at most
_MOST_BARE = 0.05  # of the exponentials: the factors that rescale O may wait for it


@dataclass(frozen=True, slots=True)
class Lint:
    """What a kernel's machine code does wrong, and which rules it leaves undecided, each as a sentence."""

    failures: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.failures


def lint(cubin: Cubin, entry: str) -> Lint:
    """The rules on the kernel `entry`. Code without wgmma has no rule to break but the first."""
    failures = [*_spills(cubin, entry), *_serialized(cubin, entry)]
    code = _instructions(cubin, entry)
    if not any(each.mnemonic == "HGMMA" for each in code):
        return Lint(tuple(failures))
    failures += _split_groups(code)
    if any(each.mnemonic in _UNDECIDED or each.word & 0x1FF == _BRX for each in code):
        return Lint(tuple(failures), ("exponentials under wgmma: not checked (calls, indirect branches)",))
    return Lint((*failures, *_bare_exponentials(code)))


def overlap(cubin: Cubin, entry: str) -> float:
    """The share of the loops' exponentials that run while a wgmma is in flight; 1 where loops have no exponentials."""
    exponentials = _steady_exponentials(_instructions(cubin, entry))
    return sum(count > 0 for count in exponentials.values()) / len(exponentials) if exponentials else 1.0


def _instructions(cubin: Cubin, entry: str) -> tuple[Instruction, ...]:
    return decode(cubin.code(entry), cubin.options.arch)


# ---- the rules


def _spills(cubin: Cubin, entry: str) -> Iterable[str]:
    if spilled := cubin.entries[entry].spills:
        yield f"{spilled} bytes of registers are spilled"


def _serialized(cubin: Cubin, entry: str) -> Iterable[str]:
    for found in _SERIALIZED.finditer(cubin.log):
        if entry in found[0] or "function" not in found[0]:
            yield f"ptxas warns {found[0].strip()}"
            return


def _split_groups(code: Sequence[Instruction]) -> Iterable[str]:
    """Between wgmmas that add to one accumulator, with no wait in between, the code must run straight on.

    ptxas makes several groups of what a branch cuts, without a warning.
    """
    newest: dict[int, int] = {}  # wgmma by accumulator, since the last wait
    branch = -1
    for index, each in enumerate(code):
        if each.target is not None:
            branch = index
        elif _waits(each):
            newest.clear()
        elif each.mnemonic == "HGMMA":
            if branch > newest.get(accumulator := each.word >> 16 & 0xFF, index):
                yield f"a branch at {branch * 16:#x} stands between the wgmmas of the group around {index * 16:#x}"
                return
            newest[accumulator] = index


def _bare_exponentials(code: Sequence[Instruction]) -> Iterable[str]:
    counts = _steady_exponentials(code)
    bare = sum(count == 0 for count in counts.values())
    if bare > _MOST_BARE * len(counts):
        yield f"{bare} of the loop's {len(counts)} exponentials run with no wgmma in flight"


# ---- wgmma groups in flight


def _ends_group(hgmma: Instruction) -> bool:
    return hgmma.word >> 84 & 7 != _NO_BARRIER


def _waits(each: Instruction) -> bool:
    return each.mnemonic == "WARPGROUP" and bool(each.word >> 47 & 1)  # DEPBAR, not ARRIVE


def _is_exponential(each: Instruction) -> bool:
    return each.mnemonic == "MUFU" and each.word >> 74 & 0xF == _EX2


def _after(each: Instruction, in_flight: int) -> int:
    """Groups in flight after an instruction, which found so many."""
    if each.mnemonic == "HGMMA" and _ends_group(each):
        return min(in_flight + 1, _MANY)
    if _waits(each):
        return min(in_flight, each.word >> 72 & 0x3F)
    return in_flight


def _steady_exponentials(code: Sequence[Instruction]) -> Mapping[int, int]:
    """Groups surely in flight at each exponential of the loops that issue wgmma, by index: the fewest of any path."""
    steady = _looping_with_wgmma(code)
    in_flight = _fewest_in_flight(code)
    exponentials = (index for index in sorted(steady) if _is_exponential(code[index]))
    return {index: in_flight.get(index, 0) for index in exponentials}


def _fewest_in_flight(code: Sequence[Instruction]) -> dict[int, int]:
    """By index of each instruction that can be reached: groups in flight before it, on the path with the fewest."""
    found = {0: 0}
    pending = [0]
    while pending:
        index = pending.pop()
        after = _after(code[index], found[index])
        for following in _successors(code, index):
            if after < found.get(following, _MANY + 1):
                found[following] = after
                pending.append(following)
    return found


def _looping_with_wgmma(code: Sequence[Instruction]) -> set[int]:
    """Indices of the instructions from which a wgmma is reached that reaches them in turn."""
    after = {index: _successors(code, index) for index in range(len(code))}
    before: dict[int, list[int]] = {index: [] for index in after}
    for index, following in after.items():
        for successor in following:
            before[successor].append(index)
    looping: set[int] = set()
    for index, each in enumerate(code):
        if each.mnemonic == "HGMMA" and index not in looping:
            looping |= _reached(index, after) & _reached(index, before)
    return looping


def _reached(start: int, edges: Mapping[int, Sequence[int]]) -> set[int]:
    """What a path of one step or more leads to."""
    found: set[int] = set()
    pending = list(edges[start])
    while pending:
        index = pending.pop()
        if index not in found:
            found.add(index)
            pending += edges[index]
    return found


def _successors(code: Sequence[Instruction], index: int) -> list[int]:
    each = code[index]
    leaves = each.always and (each.target is not None or each.mnemonic == "EXIT")
    following = [] if leaves or index + 1 == len(code) else [index + 1]
    return following if each.target is None else [*following, each.target]
