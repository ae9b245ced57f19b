"""What machine code must not do if its products are to run beside the softmax: rules on one kernel of a cubin."""

import re
from collections.abc import Iterable, Mapping, Sequence

from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.decode import Instruction, decode, holds, successors
from tuner.compiler.sass.fields import BYTES, destination, ends_group, function, groups_left, opcode
from tuner.compiler.sass.flight import overwritten, waits
from tuner.compiler.toolkit import Toolkit
from tuner.results.attempt import Lint

Edges = Mapping[int, Sequence[int]]  # by index of an instruction: what may follow it

_SERIALIZED = re.compile(r"\(?(C75\d\d)\)?[^\n]*")  # ptxas's warnings about wgmma
_MENDED = {"C7516": (12, 4)}  # the first CUDA that compiled clean what the one before serialized with that warning
_UNDECIDED = frozenset({"CALL", "RET"})  # where control goes is not in the instruction
_BRX = 0x149  # an indirect branch
_LANE_LOOP = 8  # instructions, at most
_MANY = 8  # groups in flight, at most
_FACTORS = 2  # exponentials by which a thread's rows of O are rescaled: they may wait for it
_MOST_BARE = 0.05  # of the exponentials, where a loop has many


def lint(cubin: Cubin, entry: str) -> Lint:
    """The rules on the kernel `entry`. Code without wgmma or tcgen05 has one to break, the first: it is not decoded."""
    failures = [*_spills(cubin, entry), *_serialized(cubin, entry)]
    if holds(cubin.code(entry), "UTCHMMA"):
        failures += _looped(_instructions(cubin, entry))
    if not holds(cubin.code(entry), "HGMMA"):
        return Lint(tuple(failures))
    code = _instructions(cubin, entry)
    failures += [*_overwritten(code), *_split_groups(code)]
    if any(each.mnemonic in _UNDECIDED or opcode(each.word) == _BRX for each in code):
        return Lint(tuple(failures), ("exponentials under wgmma: not checked (calls, indirect branches)",))
    return Lint((*failures, *_bare_exponentials(code)))


def lint_all(cubin: Cubin) -> Lint:
    """The rules on every kernel of a cubin; a sentence names its kernel where there are several."""
    found = {entry: lint(cubin, entry) for entry in cubin.entries}
    if len(found) == 1:
        return next(iter(found.values()))
    failures = tuple(f"{entry}: {each}" for entry, one in found.items() for each in one.failures)
    return Lint(failures, tuple(f"{entry}: {each}" for entry, one in found.items() for each in one.unchecked))


def _instructions(cubin: Cubin, entry: str) -> tuple[Instruction, ...]:
    return decode(cubin.code(entry), cubin.options.arch)


def _spills(cubin: Cubin, entry: str) -> Iterable[str]:
    if spilled := cubin.entries[entry].spills:
        yield f"{spilled} bytes of registers are spilled"


def _serialized(cubin: Cubin, entry: str) -> Iterable[str]:
    for found in _SERIALIZED.finditer(cubin.log):
        if entry in found[0] or "function" not in found[0]:
            yield f"ptxas warns {found[0].strip()}{_remedy(found[1], cubin.toolkit)}"
            return


def _remedy(warning: str, toolkit: Toolkit) -> str:
    mended = _MENDED.get(warning, ())
    if tuple(map(int, toolkit.version.split("."))) >= mended:
        return ""
    return f"; {toolkit} serializes what CUDA {'.'.join(map(str, mended))} and later compile clean: install one of them"


def _looped(code: Sequence[Instruction]) -> Iterable[str]:
    """ptxas makes a loop over lanes, which elects one a pass, of what it cannot prove a single lane to execute."""
    loops = ((each.target, index) for index, each in enumerate(code) if each.target is not None and each.target < index)
    bodies = ({each.mnemonic for each in code[first:last]} for first, last in loops if last - first < _LANE_LOOP)
    if looped := sum("ELECT" in body and bool(body & {"UTCHMMA", "UTCBAR"}) for body in bodies):
        yield f"{looped} instructions of tcgen05 stand in loops over lanes: choose who issues them by elect.sync"


def _overwritten(code: Sequence[Instruction]) -> Iterable[str]:
    if places := overwritten(code):
        yield (
            f"{len(places)} instructions, the first at {places[0] * BYTES:#x}, write registers of a wgmma that may not "
            "be done with them: ptxas does so until CUDA 13.3"
        )


def _split_groups(code: Sequence[Instruction]) -> Iterable[str]:
    """Between wgmmas that add to one accumulator, with no wait in between, the code must run straight on.

    ptxas makes several groups of what a branch cuts, without a warning.
    """
    newest: dict[int, int] = {}  # wgmma by accumulator, since the last wait
    branch = -1
    for index, each in enumerate(code):
        if each.target is not None:
            branch = index
        elif waits(each):
            newest.clear()
        elif each.mnemonic == "HGMMA":
            if branch > newest.get(accumulator := destination(each.word), index):
                at, around = branch * BYTES, index * BYTES
                yield f"a branch at {at:#x} stands between the wgmmas of the group around {around:#x}"
                return
            newest[accumulator] = index


def _bare_exponentials(code: Sequence[Instruction]) -> Iterable[str]:
    counts = _steady_exponentials(code)
    bare = sum(count == 0 for count in counts.values())
    if bare > max(_FACTORS, _MOST_BARE * len(counts)):
        yield f"{bare} of the loop's {len(counts)} exponentials run with no wgmma in flight"


def _is_exponential(each: Instruction) -> bool:
    return each.mnemonic == "MUFU" and function(each.word) == "EX2"


def _after(each: Instruction, in_flight: int) -> int:
    """Groups in flight after an instruction, which found so many."""
    if each.mnemonic == "HGMMA" and ends_group(each.word):
        return min(in_flight + 1, _MANY)
    if waits(each):
        return min(in_flight, groups_left(each.word))
    return in_flight


def _steady_exponentials(code: Sequence[Instruction]) -> Mapping[int, int]:
    """Groups surely in flight at each exponential of the loops that issue wgmma, by index: the fewest of any path."""
    steady = _steady(code)
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
        for following in successors(code, index):
            if after < found.get(following, _MANY + 1):
                found[following] = after
                pending.append(following)
    return found


def _steady(code: Sequence[Instruction]) -> set[int]:
    """Indices of the instructions of innermost loops that issue wgmma."""
    after = {index: successors(code, index) for index in range(len(code))}
    issues = {index for index, each in enumerate(code) if each.mnemonic == "HGMMA"}
    return _innermost(after, after, issues)


def _innermost(after: Edges, inside: Edges, issues: set[int]) -> set[int]:
    """The loops of the graph `inside`, a part of `after`, that issue and hold no other loop that does."""
    found: set[int] = set()
    for loop in _components(inside):
        if loop & issues:
            entries = {to for index in after.keys() - loop for to in after[index] if to in loop}
            body = {index: [to for to in inside[index] if to in loop - entries] for index in loop}
            found |= _innermost(after, body, issues) or loop
    return found


def _components(after: Edges) -> list[set[int]]:
    """Strongly connected components that hold a cycle (Kosaraju's algorithm)."""
    before: dict[int, list[int]] = {index: [] for index in after}
    for index, following in after.items():
        for to in following:
            before[to].append(index)
    found, seen = [], set[int]()
    for root in reversed(_left(after)):
        component, pending = set[int](), [root]
        while pending:
            index = pending.pop()
            if index not in seen:
                seen.add(index)
                component.add(index)
                pending += before[index]
        if len(component) > 1 or root in after[root]:
            found.append(component)
    return found


def _left(after: Edges) -> list[int]:
    """Indices in the order in which a depth-first walk leaves them."""
    found, seen = [], set[int]()
    pending = [(index, False) for index in after]
    while pending:
        index, leaving = pending.pop()
        if leaving:
            found.append(index)
        elif index not in seen:
            seen.add(index)
            pending += [(index, True), *((to, False) for to in after[index])]
    return found
