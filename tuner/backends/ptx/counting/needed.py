"""Selects the instructions that decide control flow and addresses; only these are executed when counting."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.backends.ptx.instructions.access import space_of
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import Address, Instruction

ACCESSES = frozenset({"ld", "ldu", "st", "atom", "red"})
_STORES = frozenset({"st", "red"})
_WITHOUT_RESULT = _STORES | {"bra", "brx", "bar", "barrier", "ret", "exit", "trap", "call", "membar", "fence", "cp"}
_ALWAYS = frozenset({"bra", "brx", "bar", "barrier", "ret", "exit", "call", "trap", "nanosleep", "mbarrier"})


@dataclass(frozen=True)
class Needed:
    """The instructions to execute, by index, and whether they depend on memory contents."""

    executed: frozenset[int]
    registers: frozenset[str]  # registers that they read
    data: bool  # whether they depend on global or constant memory


def needed(entry: Entry) -> Needed:
    """Trace backwards from branch guards and addresses, through memory where a load is on the path."""
    writers: defaultdict[str, list[int]] = defaultdict(list)
    for at, instruction in enumerate(entry.code):
        for name in written(instruction):
            writers[name].append(at)
    stores: defaultdict[str, list[int]] = defaultdict(list)
    for at, instruction in enumerate(entry.code):
        if instruction.opcode[0] in _STORES or instruction.opcode[0] == "atom":
            stores[space_of(instruction)].append(at)
    executed: set[int] = set()
    registers: set[str] = set()
    spaces: set[str] = set()
    work = [name for at, instruction in enumerate(entry.code) for name in _roots(instruction)]
    executed.update(at for at, instruction in enumerate(entry.code) if instruction.opcode[0] in _ALWAYS)

    def execute(at: int) -> None:
        if at in executed:
            return
        executed.add(at)
        step = entry.code[at]
        work.extend(read(step))
        if step.opcode[0] in ACCESSES and (space := space_of(step)) not in spaces and space != "param":
            spaces.add(space)
            for store in stores[space]:
                execute(store)

    while work:
        name = work.pop()
        if name not in registers:
            registers.add(name)
            for at in writers[name]:
                execute(at)
    return Needed(frozenset(executed), frozenset(registers), bool(spaces & {"global", "const", "generic"}))


def written(instruction: Instruction) -> tuple[str, ...]:
    """Return the registers that an instruction writes."""
    if instruction.opcode[0] in _WITHOUT_RESULT and instruction.opcode[:2] != ("bar", "red"):
        return ()
    if not instruction.operands or isinstance(instruction.operands[0], Address):
        return ()
    return tuple(part for word in instruction.words(0) for part in word.split("|"))


def read(instruction: Instruction) -> Iterator[str]:
    """Return the registers that an instruction reads, including its guard."""
    results = bool(written(instruction))
    for operand in instruction.operands[results:]:
        yield from _names(operand)
    if results and instruction.guard:
        yield from written(instruction)  # the old value remains if the guard is false
    if instruction.guard:
        yield instruction.guard.lstrip("!")


def _roots(instruction: Instruction) -> Iterator[str]:
    if instruction.opcode[0] in _ALWAYS:
        yield from read(instruction)
    for operand in instruction.operands:
        if isinstance(operand, Address) and space_of(instruction) != "param":
            yield from _names(operand)
    if instruction.guard:
        yield instruction.guard.lstrip("!")


def _names(operand: str | tuple[str, ...] | Address) -> Sequence[str]:
    if isinstance(operand, Address):
        return (operand.base,)
    return tuple(name.lstrip("!") for name in ((operand,) if isinstance(operand, str) else operand))
