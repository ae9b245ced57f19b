"""Searches for the bugs of mutations.py in the compiler's PTX: `python tests/backends/emulator/ptx_mutations.py` prints
a table.

A cell says what the PTX interpreter makes of a bug in one order of warps: wrong numbers, a fault, or nothing (`right`).
It knows races of shared memory between warps that only barriers of blocks order; another missing barrier it sees only
where the order of warps makes the numbers wrong.
"""

from tests.backends.emulator.mutations import MUTATIONS, Mutation
from tests.backends.emulator.on_ptx import PtxKernel
from tests.backends.emulator.scenarios import scenarios
from tuner.backends.emulator import Mode
from tuner.backends.ptx import ORDERS, FaultError, Order


def seen(mutation: Mutation, order: Order) -> str:
    scenario = scenarios()[mutation.kernel]
    kernel = PtxKernel(f"{mutation.kernel}.cu", scenario.arch, ((mutation.old, mutation.new),), order)
    try:
        _, right = scenario.launch(kernel, Mode())  # type: ignore[arg-type]
    except FaultError as fault:
        return str(fault).partition(" (line ")[0].partition(",")[0]
    return "right" if right else "wrong"


def main() -> None:
    print(f"| kernel | bug | {' | '.join(ORDERS)} |\n|---|---|{'---|' * len(ORDERS)}")
    result = 0
    for mutation in MUTATIONS:
        cells = [seen(mutation, order) for order in ORDERS]
        result += cells != ["right"] * len(ORDERS)
        print(f"| {mutation.kernel} | {mutation.bug} | {' | '.join(cells)} |", flush=True)
    print(f"\n{result} of {len(MUTATIONS)} are seen.")


if __name__ == "__main__":
    main()
