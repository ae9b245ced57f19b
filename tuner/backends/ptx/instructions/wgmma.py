"""wgmma: warpgroup products, which read operands and write results when their group is waited for."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from tuner.backends.ptx.instructions.descriptor import Descriptor
from tuner.backends.ptx.instructions.exchange import together
from tuner.backends.ptx.instructions.matrix import ELEMENTS, Element, a_fragment, elements
from tuner.backends.ptx.instructions.products import multiply_add
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.memory import SHARED_BASE, FaultError
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import Instruction
from tuner.backends.tensor_cores import of_wgmma

GROUP = 128  # lanes per warpgroup
_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}  # bytes of a swizzle, by the mode in bits 62 and 63


def descriptor_of(bits: int) -> Descriptor:
    """Decode a matrix descriptor. Raises FaultError for a base offset, which is not supported."""
    if bits >> 49 & 7:
        raise FaultError(f"unsupported: a matrix descriptor with base offset {bits >> 49 & 7}")
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    return Descriptor(start, leading, stride, _SPANS[bits >> 62])


@dataclass(frozen=True)
class WgmmaProduct:
    """A product that was issued by one warpgroup and is not executed yet."""

    lanes: slice
    a: Descriptor | tuple[Array, ...]
    b: Descriptor
    transposed: tuple[bool, bool]
    accumulates: bool
    element: Element
    targets: list[Array]

    def execute(self, wave: Wave) -> None:
        """Compute D = A B (+ D) in fp32 with `of_wgmma` rounding."""
        n, element = 2 * len(self.targets), self.element
        a, b = self._a(wave), self.b.tile(wave, self.lanes.start, n, element, self.transposed[1])
        c, at = np.zeros((64, n), np.float32), _layout(len(self.targets))
        if self.accumulates:
            c[at] = [target[self.lanes] for target in self.targets]
        subnormal = element.subnormal, element.subnormal
        d = multiply_add(a, b.T, c, subnormal, of_wgmma(element.size), element.size)
        for target, value in zip(self.targets, d[at], strict=True):
            target[self.lanes] = value

    def _a(self, wave: Wave) -> Array:
        if isinstance(self.a, Descriptor):
            return self.a.tile(wave, self.lanes.start, 64, self.element, self.transposed[0])
        bits = elements(list(self.a), self.lanes, self.element.size)  # [4 warps, lanes, 16 / size]
        tiles = a_fragment(self.element.depth, self.element.size).tile(self.element.floats(bits))
        return tiles.reshape(64, -1)


@cache
def _layout(registers: int) -> tuple[Array, Array]:
    """Return the [registers, 128] rows and columns of a thread's accumulators."""
    thread, i = np.arange(GROUP)[None, :], np.arange(registers)[:, None]
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    return row, i // 4 * 8 + thread % 4 * 2 + i % 2


@dataclass
class WgmmaQueue:
    """The products of a warpgroup: those of the open group, and the committed groups, oldest first."""

    open: list[WgmmaProduct] = field(default_factory=list)
    committed: list[list[WgmmaProduct]] = field(default_factory=list)


def _queues(_: Wave) -> defaultdict[int, WgmmaQueue]:
    """Return the queues by warpgroup number."""
    return defaultdict(WgmmaQueue)


def _groups(wave: Wave, mask: Mask) -> list[int]:
    lanes = wave.running(mask)
    groups: list[int] = np.flatnonzero(lanes[::GROUP]).tolist()
    return groups


def registers_of(entry: Entry) -> frozenset[str]:
    """Return the accumulators and A registers of all products; after a write, they need a wgmma.fence before a
    product.
    """
    products = [instruction for instruction in entry.code if instruction.opcode[:2] == ("wgmma", "mma_async")]
    vectors = (product.operands[i] for product in products for i in (0, 1))  # excludes descriptors
    return frozenset(name for vector in vectors if isinstance(vector, tuple) for name in vector)


def _written(wave: Wave) -> Array:
    """Return [warpgroups] bool: whether product registers were written since the last wgmma.fence, or never fenced."""
    return np.ones(wave.lanes // GROUP, bool)


def watched(step: Step, wave: Wave) -> Step:
    """Wrap `step`, which writes a register of a product."""

    def run(mask: Mask) -> Mask:
        wave.part(_written)[wave.running(mask).reshape(-1, GROUP).any(1)] = True
        return step(mask)

    return run


def _fence(wave: Wave, mask: Mask) -> None:
    wave.part(_written)[_groups(wave, mask)] = False


def _multiply(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Operands: D, A or its descriptor, B's descriptor, scale-d, two signs, then the transposes."""
    shape, *kinds = instruction.opcode[4:]
    element = ELEMENTS.get(kinds[1]) if len(kinds) == 3 and kinds[0] == "f32" and kinds[1] == kinds[2] else None
    if element is None or not shape.endswith(f"k{element.depth}"):
        raise UnsupportedError(instruction.name)
    if instruction.word(4) != "1" or instruction.word(5) != "1":
        raise UnsupportedError("wgmma with a negated operand")
    registers, in_registers = wave.registers, not isinstance(instruction.operands[1], str)
    targets = [registers.write(name, "f32") for name in instruction.words(0)]
    if 2 * len(targets) != int(shape[len("m64n") : shape.index("k")]):
        raise UnsupportedError(f"{shape} with {len(targets)} accumulators")
    flags = tuple(int(instruction.word(i), 0) == 1 for i in range(6, len(instruction.operands)))
    flags = flags or (False, False)  # other types than 16-bit ones are K-major
    transposed = (False, flags[0]) if in_registers else (flags[0], flags[1])
    a_words = tuple(registers.read(word, "b32") for word in instruction.words(1)) if in_registers else ()
    a_bits = registers.read(instruction.word(1), "u64") if not in_registers else np.array(0)
    b_bits, scale = registers.read(instruction.word(2), "u64"), instruction.word(3)

    def issued(mask: Mask) -> None:
        accumulates = registers.condition(scale)
        for group in _groups(wave, mask):
            if wave.part(_written)[group]:
                raise FaultError("registers of a product were written, or never fenced, since the last wgmma.fence")
            first = GROUP * group
            lanes = slice(first, first + GROUP)
            for bits in (b_bits,) if in_registers else (a_bits, b_bits):
                if (bits[lanes] != bits[first]).any():
                    raise FaultError("the descriptors of a warpgroup's lanes differ")
            a = a_words or descriptor_of(int(a_bits[first]))
            b = descriptor_of(int(b_bits[first]))
            product = WgmmaProduct(lanes, a, b, transposed, bool(accumulates[first]), element, targets)
            wave.part(_queues)[group].open.append(product)

    return together(wave, at, GROUP, issued)


def _commit(wave: Wave, mask: Mask) -> None:
    for group in _groups(wave, mask):
        queue = wave.part(_queues)[group]
        queue.committed.append(queue.open)
        queue.open = []


def _wait(wave: Wave, mask: Mask, newest: int) -> None:
    for group in _groups(wave, mask):
        queue = wave.part(_queues)[group]
        while len(queue.committed) > newest:
            for product in queue.committed.pop(0):
                product.execute(wave)


def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode wgmma.* for whole warpgroups. Raises UnsupportedError for unsupported forms."""
    name = instruction.opcode[1]
    if name == "mma_async":
        return _multiply(wave, instruction, at)
    if name == "fence":
        return together(wave, at, GROUP, lambda mask: _fence(wave, mask))
    if name == "commit_group":
        return together(wave, at, GROUP, lambda mask: _commit(wave, mask))
    if name == "wait_group":
        newest = int(instruction.word(0), 0)
        return together(wave, at, GROUP, lambda mask: _wait(wave, mask, newest))
    raise UnsupportedError(instruction.name)


assert SHARED_BASE % 1024 == 0, "swizzle patterns start at the base of shared memory"

DECODERS: Mapping[str, Decoder] = {"wgmma": decode}
