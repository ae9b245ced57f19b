"""Kernels compiled for the CPU, and the findings and counters of a launch."""

import ctypes
import math
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from typing import Literal, get_args

import numpy as np

from tuner.backends.emulator.build import shared_object
from tuner.backends.emulator.build import symbol as symbol_of
from tuner.backends.emulator.memory import Array, Buffer, encode
from tuner.backends.emulator.runtime import (
    EXCLUSIVE,
    CFinding,
    CIndex,
    COptions,
    Counters,
    CSumRule,
    location_of,
    runtime,
)
from tuner.backends.tensor_cores import of_mma_sync, of_tcgen05, of_wgmma
from tuner.compiler.source import Source
from tuner.errors import InputError, TemplateError
from tuner.spec.plan import Launch
from tuner.spec.tensor_map import MappedTensor

DEFAULT_ARCH = "sm_80"  # default arch of a launch
Schedule = Literal["order", "reverse", "random"]
Timing = Literal["early", "late", "random"]


@dataclass(frozen=True, slots=True)
class Mode:
    """Execution mode of the emulator.

    `checked` instruments every access. `schedule` selects the next thread. `asynchronous` selects when copies and
    products take effect: at issue, or as late as their wait allows. `seed` seeds all random choices.
    """

    checked: bool = False
    schedule: Schedule = "order"
    asynchronous: Timing = "early"
    seed: int = 0

    def __str__(self) -> str:
        seed = f" seed={self.seed}" if "random" in (self.schedule, self.asynchronous) else ""
        return f"{'checked' if self.checked else 'plain'} {self.schedule}/{self.asynchronous}{seed}"


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in a kernel. `kind` is a term of templates/primitives/README.md; `location` is `file:line`."""

    kind: str
    message: str
    block: tuple[int, int, int] = (0, 0, 0)
    thread: int | None = None
    location: str = ""
    buffer: str = ""
    offset: int = 0  # byte offset in the buffer
    other_thread: int | None = None
    other_location: str = ""
    count: int = 1

    def __str__(self) -> str:
        who = f" by thread {self.thread} of block {self.block}" if self.thread is not None else ""
        where = f" at {self.location}" if self.location else ""
        what = f", {self.buffer} offset {self.offset}" if self.buffer else ""
        other = f", against thread {self.other_thread}" if self.other_thread is not None else ""
        line = f", other at {self.other_location}" if self.other_location else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind}{where}: {self.message}{what}{who}{other}{line}{times}"


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one launch, or of all launches of a plan."""

    findings: tuple[Finding, ...]
    counters: Counters
    block_counters: Array  # [blocks, counters] uint64: counters per block and launch, x fastest
    cpu_seconds: float


# A pointer, a scalar of exactly the parameter's type, a tensor that TMA copies boxes of, or a struct by value.
Value = Buffer | np.generic | MappedTensor | ctypes.Structure


class Kernel:
    """The compiled kernels of one source, loaded into this process until garbage collection."""

    def __init__(self, source: Source, *, checked: bool) -> None:
        self.source, self.checked = source, checked
        error = ctypes.create_string_buffer(1024)
        path = str(shared_object(source, checked=checked)).encode()
        with EXCLUSIVE:
            _unload()
            library = runtime().emulator_open(path, error, len(error))
        if not library:
            raise TemplateError(f"the kernel cannot be loaded: {error.value.decode(errors='replace')}")
        self._library = library
        weakref.finalize(self, _unused.append, library)

    def run(
        self,
        launch: Launch,
        arguments: Sequence[Value],
        mode: Mode,
        *,
        arch: str = DEFAULT_ARCH,
        most_seconds: float = 0.0,
    ) -> Run:
        """Run one launch of a plan; see `launch`."""
        return self.launch(
            launch.entry,
            launch.grid,
            launch.block,
            launch.smem_bytes,
            arguments,
            mode,
            cluster=launch.cluster,
            arch=arch,
            most_seconds=most_seconds,
        )

    def launch(
        self,
        entry: str,
        grid: tuple[int, int, int],
        threads: int | tuple[int, int, int],
        smem_bytes: int,
        arguments: Sequence[Value],
        mode: Mode,
        *,
        cluster: int = 1,
        arch: str = DEFAULT_ARCH,
        most_seconds: float = 0.0,
    ) -> Run:
        """Run a kernel over its grid.

        `threads` and `smem_bytes` are per block; a cluster has `cluster` blocks along x. `mma.sync` rounds like the
        tensor cores of `arch`; see `tuner.backends.tensor_cores`. Buffers keep what the kernel wrote. A launch that no
        GPU accepts is a finding, and so is exceeding `most_seconds` of CPU time (0: no limit). Raises InputError for a
        wrong number of arguments, and for a tensor map that no driver encodes.
        """
        if mode.checked and not self.checked:
            raise InputError("this kernel was built without checks: build(source, checked=True)")
        symbol = self.symbol(f"emulated_{symbol_of(entry)}")
        self._check_count(entry, len(arguments))
        held = [_argument(value) for value in arguments]
        pointers = (ctypes.c_void_p * max(len(held), 1))(*(ctypes.addressof(value) for value in held))
        block = (threads, 1, 1) if isinstance(threads, int) else threads
        if reason := _refusal(grid, block, smem_bytes) or self._cluster_refusal(entry, grid, cluster):
            return Run((Finding("launch", reason),), _NOTHING, np.zeros((0, len(astuple(_NOTHING))), np.uint64), 0.0)
        with EXCLUSIVE:
            started = time.thread_time()
            sizes = CIndex(*grid), CIndex(*block), cluster, smem_bytes
            runtime().emulator_launch(symbol, pointers, *sizes, _options(mode, arch, most_seconds))
            seconds = time.thread_time() - started
            return Run(_findings(), _counters(), _block_counters(math.prod(grid)), seconds)

    def fill(self, symbol: str, values: Array) -> None:
        """Write values to a `__constant__` symbol. Raises InputError if it is missing or too small."""
        data = np.ascontiguousarray(values)
        room = ctypes.c_size_t.from_address(self.symbol(f"bytes_of_{symbol}")).value
        if data.nbytes > room:
            raise InputError(f"__constant__ {symbol} has {room} bytes, the argument {data.nbytes}")
        ctypes.memmove(self.symbol(symbol), data.ctypes.data, data.nbytes)

    def _cluster_refusal(self, entry: str, grid: tuple[int, int, int], cluster: int) -> str:
        if not 1 <= cluster <= _MAX_CLUSTER:
            return f"a cluster of {cluster} blocks: the limits are 1 and {_MAX_CLUSTER}"
        if grid[0] % cluster:
            return f"a grid of {grid} blocks in clusters of {cluster} along x: {grid[0]} is not a multiple of {cluster}"
        if cluster > 1 and "__cluster_dims__" not in self.source.text:
            return f"a cluster of {cluster} blocks: {entry} has no __cluster_dims__({cluster}, 1, 1)"
        return ""

    def symbol(self, name: str) -> int:
        """Return the address of a symbol in the shared object."""
        address = runtime().emulator_symbol(self._library, name.encode())
        if not address:
            raise InputError(f"no kernel {name.partition('_')[2]!r}: the source has {', '.join(self.source.entries)}")
        return int(address)

    def _check_count(self, entry: str, count: int) -> None:
        expected = ctypes.c_int.from_address(self.symbol(f"parameters_of_{symbol_of(entry)}")).value
        if count != expected:
            raise InputError(f"{entry} takes {expected} arguments, not {count}")


# Libraries of collected kernels. A later load unloads them, because collection may happen in any thread at any
# moment, and a child that is forked during it inherits the lock of the loader.
_unused: deque[int] = deque()


def _unload() -> None:
    with suppress(IndexError):  # another thread may collect meanwhile
        while True:
            runtime().emulator_close(_unused.popleft())


_NOTHING = Counters(*[0] * len(fields(Counters)))
_MAX_SMEM_BYTES = 227 << 10  # per block, on sm_90 and later
_MAX_BLOCKS = (1 << 31) - 1  # along x
_MAX_CLUSTER = 8  # blocks per cluster, on every GPU with clusters


def build(source: Source, *, checked: bool) -> Kernel:
    """Compile and load a source rendered for `host`; compiled code is cached.

    Raises TemplateError if g++ rejects it, and MachineError if this machine cannot build it.
    """
    return Kernel(source, checked=checked)


def _refusal(grid: tuple[int, int, int], block: tuple[int, int, int], smem_bytes: int) -> str:
    if not 1 <= math.prod(block) <= 1024 or min(block) < 1 or block[2] > 64:
        return f"a block of {block} threads: 1 to 1024 are possible, at most 64 along z"
    if min(grid) < 1 or grid[0] > _MAX_BLOCKS or max(grid[1:]) > 65535:
        return f"a grid of {grid} blocks: from 1 to 2147483647, 65535 and 65535 are possible"
    if smem_bytes > _MAX_SMEM_BYTES:
        return f"{smem_bytes} bytes of dynamic shared memory: at most {_MAX_SMEM_BYTES} are possible"
    return ""


def _options(mode: Mode, arch: str, most_seconds: float) -> COptions:
    schedule, timing = get_args(Schedule).index(mode.schedule), get_args(Timing).index(mode.asynchronous)
    rules = map(CSumRule.of, (of_mma_sync(arch, 2), of_wgmma(2), of_tcgen05()))
    return COptions(schedule, timing, mode.checked, *rules, mode.seed, most_seconds)


def _argument(value: Value) -> "ctypes._SimpleCData[int] | ctypes.Array[ctypes.c_char] | ctypes.Structure":
    """Return a ctypes object that holds the value's bytes."""
    if isinstance(value, Buffer):
        return ctypes.c_uint64(value.address)
    if isinstance(value, MappedTensor):
        value = encode(value)
    if isinstance(value, np.generic):
        return ctypes.create_string_buffer(value.tobytes(), value.itemsize)
    return value


def _findings() -> tuple[Finding, ...]:
    count = ctypes.c_int()
    findings = runtime().emulator_findings(ctypes.byref(count))
    return tuple(_finding(findings[i]) for i in range(count.value))


def _finding(finding: CFinding) -> Finding:
    return Finding(
        kind=finding.kind.decode(),
        message=finding.message.decode(errors="replace"),
        block=(finding.block[0], finding.block[1], finding.block[2]),
        thread=finding.thread if finding.thread >= 0 else None,
        location=location_of(finding.site),
        buffer=finding.buffer.decode(errors="replace"),
        offset=finding.offset,
        other_thread=finding.other_thread if finding.other_thread >= 0 else None,
        other_location=location_of(finding.other_site),
        count=finding.count,
    )


def _counters() -> Counters:
    counted: Counters = runtime().emulator_counters().contents.value()
    return counted


def _block_counters(blocks: int) -> Array:
    counted = ctypes.cast(runtime().emulator_block_counters(), ctypes.POINTER(ctypes.c_uint64))
    return np.ctypeslib.as_array(counted, (blocks, len(astuple(_NOTHING)))).copy()
