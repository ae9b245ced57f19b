"""tcgen05.mma and .commit: single-thread products into tensor memory, executed in order and as late as barriers
allow.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tuner.backends.ptx.instructions.access import addresses
from tuner.backends.ptx.instructions.descriptor import Descriptor
from tuner.backends.ptx.instructions.floats import f16_bits, f16_floats
from tuner.backends.ptx.instructions.matrix import ELEMENTS, Element
from tuner.backends.ptx.instructions.mbarrier import Barriers, located
from tuner.backends.ptx.instructions.products import multiply_add
from tuner.backends.ptx.instructions.tmem import LANES, POISON, Cells, TensorMemory
from tuner.backends.ptx.state.machine import Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Address, Instruction
from tuner.backends.tensor_cores import of_tcgen05

_SWIZZLES = {0: (0, 16), 1: (128, 32), 2: (128, 16), 4: (64, 16), 6: (32, 16)}  # span and chunk in bytes
Lanes = list[int]
_TYPES = {  # types of A and B by their number in the instruction descriptor
    "kind::f16": {0: "f16", 1: "bf16"},
    "kind::tf32": {2: "tf32"},
    "kind::f8f6f4": {0: "e4m3", 1: "e5m2"},
}


def descriptor_of(bits: int) -> Descriptor:
    """Decode a matrix descriptor (PTX ISA, "Shared memory descriptor"). Raises FaultError for invalid or unsupported
    bits.
    """
    if bits >> 46 & 7 != 1 or bits >> 53 & 0xFF:
        raise FaultError(f"a matrix descriptor {bits:#x}, whose bits 46 to 48 are not 1, or 53 to 60 not 0")
    if bits >> 49 & 15:
        raise FaultError("unsupported: a matrix descriptor with a base offset, or absolute leading addresses")
    if bits >> 61 not in _SWIZZLES:
        raise FaultError(f"a matrix descriptor with swizzle {bits >> 61}")
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    return Descriptor(start, leading, stride, *_SWIZZLES[bits >> 61])


@dataclass(frozen=True)
class Operation:
    """An instruction descriptor (PTX ISA, "Instruction descriptor") of D = A B + D, A [m, depth] and B [depth, n]."""

    m: int
    n: int
    a: Element
    b: Element
    transposed: tuple[bool, bool]
    signs: tuple[int, int]
    half: bool  # D is fp16

    @classmethod
    def of(cls, bits: int, kind: str) -> "Operation":
        """Decode an instruction descriptor. Raises FaultError for invalid bits, sparse matrices and 4-bit and 6-bit
        types.
        """
        types = _TYPES[kind]
        m, n, d = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3, bits >> 4 & 3
        a, b = (ELEMENTS.get(types.get(bits >> at & 7, "")) for at in (7, 10))
        halves = d == 0 and (kind == "kind::f8f6f4" or (kind == "kind::f16" and a is b is ELEMENTS["f16"]))
        if a is None or b is None or bits & 0xF or not (halves or d == 1):
            raise FaultError(f"unsupported: {kind} with instruction descriptor {bits:#x}")
        if bits & (1 << 6 | 1 << 23 | 7 << 29):
            raise FaultError(f"an instruction descriptor {bits:#x} with reserved bits")
        transposed = bool(bits >> 15 & 1), bool(bits >> 16 & 1)
        if m not in (64, 128) or not 8 <= n <= 256 or (n % 16 and b.size == 1 and transposed[1]):
            raise FaultError(f"a product of {m} x {n}")
        return cls(m, n, a, b, transposed, (1 - (bits >> 12 & 2), 1 - (bits >> 13 & 2)), halves)

    def cells(self, block: int, address: int, columns: int) -> Cells:
        """Return the cells of D or A: all lanes for 128 rows; the lower or upper 16 lanes of each warp's 32 for 64
        rows.
        """
        row, first = np.arange(self.m), address >> 16
        if first not in ((0, 16) if self.m == 64 else (0,)):
            raise FaultError(f"a product of {self.m} rows that starts at lane {first} of tensor memory")
        lanes = first + (row if self.m == LANES else row // 16 * 32 + row % 16)
        return block, lanes, slice(address & 0xFFFF, (address & 0xFFFF) + columns)


@dataclass(frozen=True)
class Tcgen05Product:
    """A product that was issued by one thread and is not executed yet."""

    lane: int
    line: int
    operation: Operation
    d: Cells
    a: Descriptor | Cells
    b: Descriptor
    accumulates: bool
    scale: float  # factor of the previous D
    kept: Array  # [m] bool: rows that are not written

    def issue(self, wave: Wave) -> None:
        """Reserve D until the product is executed. Raises FaultError for invalid cells."""
        memory = wave.part(TensorMemory)
        for cells in (self.d,) if isinstance(self.a, Descriptor) else (self.d, self.a):
            memory.check_held(cells)
            memory.check_settled(cells, "a product", reads=cells is self.a)
        memory.writers[self.d] += 1

    def execute(self, wave: Wave) -> None:
        """Compute D = A B + D in fp32 or fp16 with `of_tcgen05` rounding. Raises FaultError with the line of the
        product.
        """
        try:
            a, b = self._a(wave), self._b(wave).T
        except FaultError as error:
            raise FaultError(f"{error}, in the product of line {self.line}") from error
        memory, operation = wave.part(TensorMemory), self.operation
        before = memory.cells[self.d]
        scaled = self._floats(before) * np.float32(self.scale if self.accumulates else 0)
        c = np.where(self.accumulates, scaled, 0).astype(np.float16 if operation.half else np.float32)
        subnormals = operation.a.subnormal, operation.b.subnormal
        product = multiply_add(a, b, c, subnormals, of_tcgen05(), operation.a.size)
        memory.cells[self.d] = np.where(self.kept[:, None], before, self._bits(product))
        memory.writers[self.d] -= 1

    def _a(self, wave: Wave) -> Array:
        element, sign = self.operation.a, np.float32(self.operation.signs[0])
        if isinstance(self.a, Descriptor):
            return sign * self.a.tile(wave, self.lane, self.operation.m, element, self.operation.transposed[0])
        words = np.ascontiguousarray(wave.part(TensorMemory).cells[self.a])
        return sign * element.floats(words.view(f"u{element.size}"))

    def _b(self, wave: Wave) -> Array:
        tile = self.b.tile(wave, self.lane, self.operation.n, self.operation.b, self.operation.transposed[1])
        return np.float32(self.operation.signs[1]) * tile

    def _floats(self, words: Array) -> Array:
        return f16_floats(words.astype(np.uint16)) if self.operation.half else words.view(np.float32)

    def _bits(self, values: Array) -> Array:
        """Return the cells' bits; fp16 occupies the lower half of a cell."""
        if self.operation.half:
            return f16_bits(values) | np.uint32(POISON & 0xFFFF0000)
        return np.ascontiguousarray(values, np.float32).view(np.uint32)


@dataclass
class Tcgen05Queue:
    """Pending work of a block's tensor cores, in order: products, and arrivals that wait for them."""

    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    added: int = 0

    def add(self, act: Callable[[], None]) -> int:
        self.waiting.append(act)
        self.added += 1
        return self.added

    def until(self, number: int) -> None:
        while self.added - len(self.waiting) < number:
            self.waiting.popleft()()


def _queues(_: Wave) -> defaultdict[int, Tcgen05Queue]:
    """Return the queues by block number."""
    return defaultdict(Tcgen05Queue)


def _queue(wave: Wave, lane: int) -> Tcgen05Queue:
    return wave.part(_queues)[int(wave.block_of[lane])]


@dataclass(frozen=True)
class Operands:
    """Operands: [D], A's descriptor or [A], B's descriptor, the instruction descriptor, disabled lanes, enable-input,
    D's scale.
    """

    kind: str
    d: Callable[[Lanes], Array]
    a: Callable[[Lanes], Array]
    in_memory: bool  # A is in tensor memory
    b: Array
    operations: Array
    masks: tuple[Array, ...]
    adds: str
    scale: float

    @classmethod
    def of(cls, wave: Wave, instruction: Instruction) -> "Operands":
        registers, lanes, a = wave.registers, wave.lanes, instruction.operands[1]
        masked = isinstance(instruction.operands[4], tuple)
        masks = instruction.words(4) if masked else ()
        adds, *scales = map(instruction.word, range(5 if masked else 4, len(instruction.operands)))
        left = (
            addresses(wave, a, "shared") if isinstance(a, Address) else registers.read(instruction.word(1), "u64").take
        )
        return cls(
            instruction.opcode[3],
            addresses(wave, instruction.address(0), "shared"),
            left,
            isinstance(a, Address),
            registers.read(instruction.word(2), "u64"),
            np.broadcast_to(registers.read(instruction.word(3), "u32"), lanes),
            tuple(np.broadcast_to(registers.read(mask, "u32"), lanes) for mask in masks),
            adds,
            0.5 ** int(scales[0], 0) if scales else 1.0,
        )

    def product(self, wave: Wave, lane: int, line: int) -> Tcgen05Product:
        """Return the product that a lane issues."""
        block, operation = int(wave.block_of[lane]), Operation.of(int(self.operations[lane]), self.kind)
        to, left = int(self.d([lane])[0]), int(self.a([lane])[0])
        if self.in_memory and (operation.transposed[0] or (to ^ left) >> 16):
            raise FaultError("A in tensor memory must not be transposed, and must use the lanes of D")
        words = operation.a.depth * operation.a.size // 4
        d, a = operation.cells(block, to, operation.n), operation.cells(block, left, words) if self.in_memory else None
        bits = sum(int(mask[lane]) << 32 * i for i, mask in enumerate(self.masks))
        kept = np.array([bits >> int(word) & 1 for word in d[1]], bool)
        adds, b = bool(wave.registers.condition(self.adds)[lane]), descriptor_of(int(self.b[lane]))
        return Tcgen05Product(lane, line, operation, d, a or descriptor_of(left), b, adds, self.scale, kept)


def _multiply(wave: Wave, instruction: Instruction) -> Step:
    if instruction.opcode[3] not in _TYPES or not all(
        part.startswith("collector::") for part in instruction.opcode[4:]
    ):
        raise UnsupportedError(instruction.name)
    operands = Operands.of(wave, instruction)

    def issued(mask: Mask) -> None:
        for lane in map(int, wave.numbers(mask)):
            product, queue = operands.product(wave, lane, instruction.line), _queue(wave, lane)
            product.issue(wave)
            number = queue.add(partial(product.execute, wave))
            if wave.order == "first":
                queue.until(number)

    return issued


def _commit(wave: Wave, instruction: Instruction) -> Step:
    """Decode commit: arrive at a barrier, or at those of several blocks, once all earlier products are done."""
    if not instruction.has("mbarrier::arrive::one"):
        raise UnsupportedError(instruction.name)
    several = instruction.has("multicast::cluster")
    locate = located(wave, instruction, 0)
    blocks = np.broadcast_to(wave.registers.read(instruction.word(1), "u16"), wave.lanes) if several else None

    def committed(mask: Mask) -> None:
        lanes, offsets = locate(mask)
        for lane, offset in zip(map(int, lanes), map(int, offsets), strict=True):
            barriers = [offset] if blocks is None else wave.shared.in_blocks(offset, int(blocks[lane]))
            queue = _queue(wave, lane)
            number = queue.add(partial(_arrive, wave, barriers))
            wave.land(partial(queue.until, number))

    return committed


def _arrive(wave: Wave, offsets: list[int]) -> None:
    for offset in offsets:
        wave.part(Barriers).arrive(offset)


def decode(wave: Wave, instruction: Instruction) -> Step:
    """Decode an instruction. Raises UnsupportedError for unsupported forms."""
    if instruction.opcode[1] == "mma":
        return _multiply(wave, instruction)
    if instruction.opcode[1] == "commit":
        return _commit(wave, instruction)
    raise UnsupportedError(instruction.name)
