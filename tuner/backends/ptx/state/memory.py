"""Memory as a kernel sees it: bounds-checked global buffers, shared memory of each block, and parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.backends.ptx.state.values import Array
from tuner.spec.tensor_map import MappedTensor

GLOBAL = 0x7F00_0000_0000  # first generic address of buffers
SHARED_WINDOW = 0x7E00_0000_0000  # generic address of shared address 0
PARAMETER_WINDOW = 0x7D00_0000_0000
LOCAL_WINDOW = 0x7C00_0000_0000
SHARED_BASE = 1024  # first shared address, aligned for every swizzle
RANK = 24  # a shared::cluster address holds the block's rank + 1 from this bit on; 0 for the own block
_GUARD, _ALIGNMENT = 512, 256  # in bytes
_READ, _WRITE, _WRITTEN, _CONSTANT = 1, 2, 4, 8  # flags per byte: access rights, and accesses of the current launch
_EVER = 16  # flag per byte: written by any launch


class FaultError(Exception):
    """A kernel violated the PTX ISA, or deadlocked."""


def _views(data: Array) -> dict[int, Array]:
    return {size: data.view(f"u{size}") for size in (1, 2, 4, 8)}


@dataclass(frozen=True)
class BufferRange:
    """A buffer's name and its byte range in global memory."""

    name: str
    offset: int
    nbytes: int


class Global:
    """Device memory: buffers with gaps, so that an access beyond one does not hit another."""

    def __init__(self, sizes: Mapping[str, int], writable: frozenset[str]) -> None:
        """Allocate buffers of `sizes` bytes, filled with NaN; kernels may write those in `writable`."""
        self._allocations: dict[str, BufferRange] = {}
        end = _GUARD
        for name, nbytes in sizes.items():
            self._allocations[name] = BufferRange(name, end, nbytes)
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT + _GUARD
        self.data = np.full(end, 0xFF, np.uint8)
        self.views = _views(self.data)
        self._allowed = np.zeros(end, np.uint8)
        for allocation in self._allocations.values():
            rights = _READ | _WRITE if allocation.name in writable else _READ
            self._allowed[allocation.offset : allocation.offset + allocation.nbytes] = rights

    def holds(self, name: str) -> bool:
        return name in self._allocations

    def address(self, name: str) -> int:
        return GLOBAL + self._allocations[name].offset

    def view(self, name: str, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Array:
        """Return the buffer's bytes as an array, dense unless `strides` (bytes) are given."""
        allocation = self._allocations[name]
        return np.ndarray(shape, dtype, self.data, allocation.offset, strides)

    def written(self, name: str) -> Array:
        """Return whether launches have written each byte of a buffer."""
        allocation = self._allocations[name]
        marks: Array = self._allowed[allocation.offset : allocation.offset + allocation.nbytes] & _EVER != 0
        return marks

    def begin_launch(self) -> None:
        """Make the writes of earlier launches visible to all loads."""
        self._allowed &= _READ | _WRITE | _EVER

    def read_constant(self, offsets: Array, nbytes: int) -> None:
        """Record reads by ld.global.nc. Raises FaultError if the same launch also writes the bytes."""
        self._mark(offsets[self._allowed[offsets] & _WRITE != 0], nbytes, _CONSTANT, _WRITTEN)

    def _mark(self, offsets: Array, nbytes: int, mark: int, other: int) -> None:
        cells = offsets[:, None] + np.arange(nbytes)
        rights = self._allowed[cells]
        if (rights & other).any():
            raise FaultError("ld.global.nc reads data that the same launch writes: it may return old data")
        self._allowed[cells] = rights | mark

    def locate(self, addresses: Array, nbytes: int, write: bool = False) -> Array:
        """Return offsets of `nbytes` each. Raises FaultError for misaligned, out-of-bounds and write-protected
        addresses.
        """
        offsets = addresses.astype(np.int64) - GLOBAL
        inside = (offsets >= 0) & (offsets <= len(self.data) - nbytes)
        right = _WRITE if write else _READ
        ends = np.where(inside, offsets, 0)
        allowed = inside & (self._allowed[ends] & self._allowed[ends + nbytes - 1] & right != 0)
        if not allowed.all():
            raise FaultError(self._wild(int(offsets[~allowed][0]), nbytes, write))
        if (offsets & (nbytes - 1)).any():
            raise FaultError(f"{nbytes} bytes at an address that is not a multiple of {nbytes}")
        if write:
            self._mark(offsets, nbytes, _WRITTEN | _EVER, _CONSTANT)
        return offsets

    def _wild(self, offset: int, nbytes: int, write: bool) -> str:
        verb = "writes" if write else "reads"
        before = [allocation for allocation in self._allocations.values() if allocation.offset <= offset]
        if not before:
            return f"{verb} {nbytes} bytes at {GLOBAL + offset:#x}, before every buffer"
        allocation = before[-1]
        inside = offset - allocation.offset + nbytes <= allocation.nbytes
        kind = "which kernels may not write" if inside else "beyond its end"
        where = f"offset {offset - allocation.offset} of {allocation.name} ({allocation.nbytes})"
        return f"{verb} {nbytes} bytes at {where}, {kind}"


class Shared:
    """The shared memory of blocks that run together; the offset of an address depends on the lane's block.

    If a block is a single lane, it is the lane's `.local` memory.
    """

    def __init__(self, nbytes: int, blocks: int, cluster: int, lanes_of_block: int) -> None:
        self.nbytes, self._name = nbytes, "shared" if lanes_of_block > 1 else "local"
        self.stride = -(-max(nbytes, 16) // 1024) * 1024 + 1024
        self.data = np.empty(self.stride * blocks, np.uint8)
        self.views = _views(self.data)
        block = np.repeat(np.arange(blocks, dtype=np.int64), lanes_of_block)
        self._own = block * self.stride - SHARED_BASE
        self._cluster, self._first = cluster, block // cluster * cluster
        self.clear()

    def clear(self) -> None:
        self.data[...] = 0xFF

    def block(self, offset: int) -> int:
        """Return the block whose memory contains the offset."""
        return offset // self.stride

    def in_blocks(self, offset: int, bits: int) -> list[int]:
        """Return the same offset in the blocks of its cluster whose bits are set."""
        block, within = divmod(offset, self.stride)
        if bits >> self._cluster:
            raise FaultError(f"a multicast to blocks {bits:#x}: the cluster has {self._cluster}")
        first = block // self._cluster * self._cluster
        return [(first + rank) * self.stride + within for rank in range(self._cluster) if bits >> rank & 1]

    def locate(self, addresses: Array, lanes: Any, nbytes: int) -> Array:
        """Return offsets of `nbytes` each for `lanes` (an index or a slice). Raises FaultError like `Global.locate`."""
        wide = addresses.astype(np.int64)
        rank, own = (wide >> RANK) - 1, wide & ((1 << RANK) - 1)
        bases = self._own[lanes]
        if (rank >= 0).any():
            if (rank >= self._cluster).any():
                raise FaultError(f"a shared address of block {int(rank.max())}: the cluster has {self._cluster}")
            bases = np.where(rank >= 0, (self._first[lanes] + rank) * self.stride - SHARED_BASE, bases)
        inside = (own >= SHARED_BASE) & (own + nbytes <= SHARED_BASE + self.nbytes)
        if not inside.all():
            at = int(np.broadcast_to(own, inside.shape)[~inside][0]) - SHARED_BASE
            raise FaultError(f"{nbytes} bytes at offset {at} of {self._name} memory ({self.nbytes} bytes)")
        if (own & (nbytes - 1)).any():
            raise FaultError(f"{nbytes} bytes at a {self._name} address that is not a multiple of {nbytes}")
        located: Array = bases + own
        return located


@dataclass
class Parameters:
    """A launch's arguments by name, and the tensor maps at their addresses."""

    data: dict[str, bytes]
    maps: dict[str, MappedTensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.addresses = {name: (i + 1) << 16 for i, name in enumerate(self.data)}  # addresses in .param
        self._mapped = {PARAMETER_WINDOW + self.addresses[name]: tensor_map for name, tensor_map in self.maps.items()}

    def mapped(self, address: int) -> MappedTensor | None:
        """Return the tensor map at a generic address, if a parameter at this address is one."""
        return self._mapped.get(address)

    def read(self, address: int, nbytes: int) -> bytes:
        """Return bytes at a .param address. Raises FaultError if they are outside parameters, or in a tensor map."""
        for name, begin in self.addresses.items():
            first = address - begin
            if 0 <= first <= len(self.data[name]) - nbytes and name not in self.maps:
                return self.data[name][first : first + nbytes]
        raise FaultError(f"{nbytes} bytes at {address:#x} of .param: there is no parameter at this address")
