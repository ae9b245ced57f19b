"""Rules for a kernel's machine code, mostly for the overlap of its products with the softmax."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.decode import Instruction, successors
from tuner.compiler.sass.fields import BYTES, destination, ends_group, function, groups_left, opcode
from tuner.compiler.sass.wgmma_registers import overwrites_in_flight, waits_for_wgmma
from tuner.compiler.toolkit import Toolkit
from tuner.results.attempt import Lint

Code = Sequence[Instruction]
Edges = Mapping[int, Sequence[int]]  # successors of each instruction, by index

_SERIALIZED = re.compile(r"\(?(C75\d\d)\)?[^\n]*")  # ptxas's warnings about wgmma
_FIXED = {"C7516": (12, 4)}  # the first CUDA version without that warning's cause
_UNDECIDED = frozenset({"CALL", "RET"})  # their target is not in the instruction
_BRX = 0x149  # an indirect branch
_LANE_LOOP = 8  # maximum number of instructions
_MAX_GROUPS = 8  # maximum number of groups counted in flight
_RESCALING = 2  # exponentials that rescale a thread's rows of O, which may wait for them
_MAX_BARE = 0.05  # fraction of the exponentials in a loop with many of them


def lint(cubin: Cubin, entry: str) -> Lint:
    """Check the rules for the kernel `entry`. Without wgmma and tcgen05, spills are the only rule."""
    failures = [*_spills(cubin, entry), *_serialized(cubin, entry)]
    code, mnemonics = cubin.instructions(entry), cubin.mnemonics(entry)
    if "UTCHMMA" in mnemonics:
        failures += _lane_loops(code)
    if "HGMMA" not in mnemonics:
        return Lint(tuple(failures))
    failures += [*_overwrites(code), *_split_groups(code)]
    if mnemonics & _UNDECIDED or any(opcode(instruction.word) == _BRX for instruction in code):
        return Lint(tuple(failures), ("exponentials under wgmma: not checked (calls, indirect branches)",))
    return Lint((*failures, *_bare_exponentials(code)))


def lint_all(cubin: Cubin) -> Lint:
    """Check the rules for every kernel of a cubin; each sentence names its kernel if there are several."""
    lints = {entry: lint(cubin, entry) for entry in cubin.entries}
    if len(lints) == 1:
        return next(iter(lints.values()))
    failures = tuple(f"{entry}: {text}" for entry, one in lints.items() for text in one.failures)
    return Lint(failures, tuple(f"{entry}: {text}" for entry, one in lints.items() for text in one.unchecked))


def _spills(cubin: Cubin, entry: str) -> Iterable[str]:
    if spilled := cubin.entries[entry].spills:
        yield f"{spilled} bytes of registers are spilled"


def _serialized(cubin: Cubin, entry: str) -> Iterable[str]:
    for warning in _SERIALIZED.finditer(cubin.log):
        if entry in warning[0] or "function" not in warning[0]:
            yield f"ptxas warns {warning[0].strip()}{_remedy(warning[1], cubin.toolkit)}"
            return


def _remedy(warning: str, toolkit: Toolkit) -> str:
    fixed = _FIXED.get(warning, ())
    if tuple(map(int, toolkit.version.split("."))) >= fixed:
        return ""
    return f"; {toolkit} serializes what CUDA {'.'.join(map(str, fixed))} and later compile clean: install one of them"


def _lane_loops(code: Code) -> Iterable[str]:
    """ptxas puts tcgen05 into a loop over lanes, unless it can prove that a single lane issues it."""
    targets = enumerate(instruction.target for instruction in code)
    loops = (code[first:last] for last, first in targets if first is not None and first < last < first + _LANE_LOOP)
    bodies = ({instruction.mnemonic for instruction in loop} for loop in loops)
    if count := sum("ELECT" in body and bool(body & {"UTCHMMA", "UTCBAR"}) for body in bodies):
        yield f"{count} tcgen05 instructions are in loops over lanes: choose the issuing lane with elect.sync"


def _overwrites(code: Code) -> Iterable[str]:
    if indices := overwrites_in_flight(code):
        yield (
            f"{len(indices)} instructions, the first at {indices[0] * BYTES:#x}, write registers of a wgmma that may "
            "still use them: ptxas before CUDA 13.3 generates such code"
        )


def _split_groups(code: Code) -> Iterable[str]:
    """No branch may stand between wgmmas that add to one accumulator without a wait between them.

    ptxas splits such a group at the branch, without a warning.
    """
    newest: dict[int, int] = {}  # wgmma by accumulator, since the last wait
    branch = -1
    for index, instruction in enumerate(code):
        if instruction.target is not None:
            branch = index
        elif waits_for_wgmma(instruction):
            newest.clear()
        elif instruction.mnemonic == "HGMMA":
            if branch > newest.get(accumulator := destination(instruction.word), index):
                yield f"a branch at {branch * BYTES:#x} splits the group of wgmmas around {index * BYTES:#x}"
                return
            newest[accumulator] = index


def _bare_exponentials(code: Code) -> Iterable[str]:
    counts = _groups_at_exponentials(code)
    bare = sum(count == 0 for count in counts.values())
    if bare > max(_RESCALING, _MAX_BARE * len(counts)):
        yield f"{bare} of the loop's {len(counts)} exponentials run with no wgmma in flight"


def _groups_at_exponentials(code: Code) -> Mapping[int, int]:
    """Groups in flight at each exponential of the innermost loops that issue wgmma, by index; the minimum of paths."""
    following = {index: successors(code, index) for index in range(len(code))}
    issues = {index for index, instruction in enumerate(code) if instruction.mnemonic == "HGMMA"}
    steady = sorted(_innermost(following, following, issues))
    in_flight = _fewest_in_flight(code, following)
    exponentials = (index for index in steady if code[index].mnemonic == "MUFU" and function(code[index].word) == "EX2")
    return {index: in_flight.get(index, 0) for index in exponentials}


def _fewest_in_flight(code: Code, following: Edges) -> dict[int, int]:
    """Groups in flight before each reachable instruction, by index, on the path with the fewest."""
    fewest = {0: 0}
    pending = [0]
    while pending:
        index = pending.pop()
        after = _in_flight_after(code[index], fewest[index])
        improved = [successor for successor in following[index] if after < fewest.get(successor, _MAX_GROUPS + 1)]
        fewest |= dict.fromkeys(improved, after)
        pending += improved
    return fewest


def _in_flight_after(instruction: Instruction, before: int) -> int:
    if instruction.mnemonic == "HGMMA" and ends_group(instruction.word):
        return min(before + 1, _MAX_GROUPS)
    return min(before, groups_left(instruction.word)) if waits_for_wgmma(instruction) else before


def _innermost(code: Edges, subgraph: Edges, issues: Set[int]) -> set[int]:
    """The loops of `subgraph`, a part of `code`, that issue wgmma and contain no other loop that does."""
    innermost: set[int] = set()
    for loop in _cycles(subgraph):
        if loop & issues:
            entries = {to for index in code.keys() - loop for to in code[index] if to in loop}
            body = {index: [to for to in subgraph[index] if to in loop - entries] for index in loop}
            innermost |= _innermost(code, body, issues) or loop
    return innermost


def _cycles(graph: Edges) -> list[set[int]]:
    """Strongly connected components that contain a cycle."""
    from scipy.sparse import coo_array  # only kernels with wgmma need it
    from scipy.sparse.csgraph import connected_components

    indices = {node: position for position, node in enumerate(graph)}
    edges = np.array([(indices[a], indices[b]) for a in graph for b in graph[a]], int).reshape(-1, 2)
    size = len(graph)
    matrix = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(size, size))
    _, labels = connected_components(matrix, connection="strong")
    components: dict[int, set[int]] = {}
    for node, label in zip(graph, labels.tolist(), strict=True):
        components.setdefault(label, set()).add(node)
    return [loop for loop in components.values() if len(loop) > 1 or any(node in graph[node] for node in loop)]
