"""Resources of a kernel's blocks, declared once: the constraints of a space and the launch check follow from them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tuner.arch import Arch
from tuner.spec.constraint import Constraint
from tuner.spec.plan import Plan

Quantity = Callable[[Any], Any]  # a function of a config, or of columns of many configs


@dataclass(frozen=True, slots=True)
class Block:
    """The resources of a block of the kernel `entry`; `ctas` blocks must fit on an SM at once.

    `smem` is in bytes. `registers` estimates what a thread needs, for kernels whose registers ptxas allocates; it is
    None where the kernel distributes them itself. `name` is the subject of the reasons that a user reads.
    """

    entry: str
    threads: Quantity
    smem: Quantity
    registers: Quantity | None = None
    ctas: Quantity = lambda _: 1
    name: str = "a block"


def limits(arch: Arch, *blocks: Block) -> tuple[Constraint, ...]:
    """Return the constraints for configs whose blocks are launched on `arch`."""
    return tuple(constraint for block in blocks for constraint in _limits(arch, block))


def _limits(arch: Arch, block: Block) -> Iterator[Constraint]:
    threads, smem, ctas, registers = block.threads, block.smem, block.ctas, block.registers
    yield Constraint(f"{block.name} fits the threads of an SM", lambda c: arch.fits_threads(threads(c), ctas(c)))
    yield Constraint(f"{block.name} fits the shared memory of an SM", lambda c: arch.fits_smem(smem(c), ctas(c)))
    if registers is not None:
        yield Constraint(
            f"{block.name} fits the registers of an SM",
            lambda c: registers(c) <= arch.registers_for(threads(c) * ctas(c)),
        )


def disagreements(blocks: tuple[Block, ...], plan: Plan, config: Any) -> Iterator[str]:
    """Yield each difference between the launches of a config's plan and the declared blocks."""
    by_entry = {block.entry: block for block in blocks}
    for launch in plan.launches:
        if block := by_entry.get(launch.entry):
            planned = launch.block_threads, launch.smem_bytes
            declared = int(block.threads(config)), int(block.smem(config))
            if planned != declared:
                yield (
                    f"launches {launch.entry} with {planned[0]} threads and {planned[1]} bytes of shared memory per "
                    f"block, but `blocks` declares {declared[0]} and {declared[1]}"
                )
