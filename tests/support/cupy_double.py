"""A double of CuPy for tests without a GPU: device memory is the emulator's, and a launch runs the `host` kernel.

What is checked is what `tuner.backends.gpu` hands to the driver: the order, size and value of every kernel argument,
grids, shared memory that was asked for before it is used. Rules are those of CuPy 14: a Python int travels as 8 bytes,
a NumPy scalar in its own size.
"""

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.backends import gpu
from tuner.backends.emulator import Buffer, EncodedTensorMap, Kernel, Mode
from tuner.backends.emulator.memory import SWIZZLES
from tuner.backends.gpu import tensor_map
from tuner.compiler import nvrtc
from tuner.dispatcher import on_gpu

MODEL = {"name": b"NVIDIA H200", "major": 9, "minor": 0, "multiProcessorCount": 132}
# by cudaDeviceAttr: clocks in kHz, bus width in bits, L2 size in bytes, and the compute mode
TOLD = {13: 1980000, 36: 3201000, 37: 6144, 38: 60 << 20, 20: 0}


class DriverError(RuntimeError):
    """Like CuPy's CUDADriverError."""


class ndarray:  # noqa: N801  # CuPy's own name
    """A dense array in device memory, or a view of one."""

    def __init__(self, buffer: Buffer, view: np.ndarray) -> None:
        self.buffer, self.host = buffer, view
        self.shape, self.dtype, self.strides = view.shape, view.dtype, view.strides
        self.data = SimpleNamespace(ptr=view.__array_interface__["data"][0], device_id=0)

    def __getitem__(self, index: Any) -> "ndarray":
        return ndarray(self.buffer, self.host[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host[index] = getattr(value, "host", value)

    def transpose(self, *axes: int) -> "ndarray":
        return ndarray(self.buffer, self.host.transpose(axes))


ndarray.__module__ = "cupy"


def empty(shape: Any, dtype: Any) -> ndarray:
    dtype = np.dtype(dtype)
    buffer = Buffer("device", int(np.prod(shape)) * dtype.itemsize, writable=True)
    return ndarray(buffer, buffer.view(dtype, tuple(shape)))


def asarray(array: np.ndarray) -> ndarray:
    copy = empty(array.shape, array.dtype)
    copy.host[...] = array
    return copy


class Hold:
    """The default stream, held by `tuner_hold` until the host releases it or the device times out."""

    MOST = 1023  # queue length at which a driver makes the host wait; here an error: the wait would not end

    def __init__(self) -> None:
        self.held = self.gave_up = self.most = self.queued = (
            0  # number of holds; and the longest queue behind one, and the current queue
        )
        self._words: tuple[int, int, int] | None = None
        self.blocking = False  # the host waits for each launch, as with CUDA_LAUNCH_BLOCKING

    def launch(self, grid: Any, block: Any, values: Any) -> None:
        released, expired, ticket, limit_ns = values
        assert [type(value) for value in values] == [np.uint64, np.uint64, np.uint32, np.uint64]
        assert (grid, block) == ((1, 1, 1), (1, 1, 1)) and 0 < limit_ns < 1e10
        assert not self.holds, "the stream is held already"
        self._words = int(released), int(expired), int(ticket)
        self.held, self.queued = self.held + 1, 0
        if self.blocking:
            self.wait()

    @property
    def holds(self) -> bool:
        """Return whether no queued work is running."""
        if self._words is None:
            return False
        released, expired, ticket = self._words
        return ticket not in (ctypes.c_uint32.from_address(word).value for word in (released, expired))

    def queue(self) -> None:
        """Append work to the stream."""
        if self.holds:
            self.queued += 1
            self.most = max(self.most, self.queued)
            assert self.queued <= self.MOST, "the host waits for a place in the queue"

    def wait(self) -> None:
        """Make the host wait for the device: if it is held, until it times out."""
        if self.holds:
            assert self._words is not None
            ctypes.c_uint32.from_address(self._words[1]).value = self._words[2]
            self.gave_up += 1


class Driver:
    """A device that knows the kernels of `host` sources by their entry, and the auxiliary kernels for measuring."""

    def __init__(self) -> None:
        self.hold = Hold()
        self.reads: list[tuple[int, int]] = []  # (address, bytes) of `tuner_read`
        self.kernels: dict[str, Kernel] = {}
        self.granted: dict[str, int] = {}  # dynamic shared memory by entry
        self.unasked = 48 * 1024  # limit for a kernel that did not request more; less if it has static shared memory
        self.launches: list[str] = []
        self.names: dict[str, str] = {}  # entry by symbol, of kernels with mangled C++ names
        self.unloaded = 0  # modules

    def know(self, *kernels: Kernel) -> None:
        self.kernels.update({entry: kernel for kernel in kernels for entry in kernel.source.entries})

    def launch(self, entry: str, grid: Any, block: Any, arguments: Any, smem_bytes: int, stream: Any) -> None:
        if isinstance(stream, Stream):
            stream.queue(lambda: self.launch(entry, grid, block, arguments, smem_bytes, None))
            return
        assert stream is None, "CuPy arrays run on CuPy's own stream"
        assert arguments, "CuPy takes the address of the first"
        if entry.startswith("tuner_"):
            self._instrument(entry, grid, block, arguments)
            return
        self.hold.queue()
        if smem_bytes > self.granted.get(entry, self.unasked):
            raise DriverError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        values = [argument if isinstance(argument, np.generic) else np.int64(argument) for argument in arguments]
        run = self.kernels[entry].launch(entry, grid, block, smem_bytes, values, Mode())
        assert not run.findings, run.findings
        self.launches.append(entry)

    def _instrument(self, entry: str, grid: Any, block: Any, values: Any) -> None:
        if entry == "tuner_hold":
            self.hold.launch(grid, block, values)
            return
        self.hold.queue()
        if entry == "tuner_read":
            assert [type(value) for value in values] == [np.uint64] * 3
            self.reads.append((int(values[0]), 16 * int(values[1])))
        else:
            self.launches.append(entry)

    def modules(self) -> dict[str, ModuleType]:
        """The part of `cupy` that is used."""
        cupy, cuda, driver = (ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.driver"))
        driver.CUDADriverError = DriverError
        driver.funcGetAttribute = lambda what, function: self.granted.get(_entry(what, function), self.unasked)
        driver.funcSetAttribute = lambda function, attribute, value: self.granted.update(
            {_entry(attribute, function): value}
        )
        cuda.driver, cuda.runtime, cuda.Device = driver, _RUNTIME, _device
        cuda.Stream, cuda.get_current_stream = Stream, lambda: SimpleNamespace(ptr=0)
        cuda.Module = lambda: Module(self)
        cupy.cuda, cupy.ndarray, cupy.empty, cupy.asarray = cuda, ndarray, empty, asarray
        return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.driver": driver}


class Module:
    """Like cupy.cuda.Module: unloaded, after synchronising the device, when no function of it is left."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def load(self, image: bytes) -> None:
        assert image.startswith(b"\x7fELF")

    def get_function(self, entry: str) -> "Function":
        return Function(self, self.driver.names.get(entry, entry))

    def get_global_var(self, name: str) -> int:
        """Return the address of a `__constant__` symbol, which is the emulator's."""
        return next(kernel.symbol(name) for kernel in self.driver.kernels.values() if name in kernel.source.constants)

    def __del__(self) -> None:
        self.driver.unloaded += 1


class Function:
    """Like cupy.cuda.Function: called with a grid, a block, arguments, dynamic shared memory and a stream."""

    def __init__(self, module: Module, entry: str) -> None:
        self.module, self.ptr = module, entry

    def __call__(self, grid: Any, block: Any, arguments: Any, smem_bytes: int, stream: Any) -> None:
        self.module.driver.launch(self.ptr, grid, block, arguments, smem_bytes, stream)


_RUNTIME = SimpleNamespace(
    driverGetVersion=lambda: 13020,
    getDeviceCount=lambda: 1,
    getDevice=lambda: 0,
    getDeviceProperties={0: MODEL}.__getitem__,
    deviceGetAttribute=lambda attribute, _: TOLD[attribute],
    CUDARuntimeError=RuntimeError,
    memcpyAsync=lambda target, source, nbytes, kind, _stream: ctypes.memmove(
        target, source, nbytes if kind == 3 else 0
    ),
)


class Stream:
    """A separate stream for capturing only: its work runs only when the graph is launched."""

    null = "the default stream"

    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking, "one that waits for the default stream captures nothing"
        self.ptr, self._work, self._capturing = 77, list[Callable[[], None]](), False

    def begin_capture(self) -> None:
        assert not self._capturing
        self._capturing = True

    def queue(self, work: Callable[[], None]) -> None:
        assert self._capturing
        self._work.append(work)

    def end_capture(self) -> "Graph":
        assert self._capturing
        self._capturing = False
        return Graph(tuple(self._work))


class Graph:
    """Like cupy.cuda.Graph: captured work that can be launched repeatedly."""

    def __init__(self, work: tuple[Callable[[], None], ...]) -> None:
        self._work = work

    def upload(self, stream: Any) -> None:
        assert stream is Stream.null

    def launch(self, stream: Any) -> None:
        assert stream is Stream.null
        for task in self._work:
            task()


def _entry(attribute: int, function: str) -> str:
    assert attribute == 8, "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    return function


def _encode_tiled(
    place: int, dtype: int, rank: int, base: int, size: int, stride: int, box: int, step: int, *options: int
) -> int:
    """The driver's encoder, in the emulator's representation."""
    interleave, swizzle, _, fill = options
    if not getattr(_THREAD, "bound", False):
        return 201  # CUDA_ERROR_INVALID_CONTEXT
    sizes, strides = ((ctypes.c_uint64 * count).from_address(at) for at, count in ((size, rank), (stride, rank - 1)))
    boxes, steps = ((ctypes.c_uint32 * rank).from_address(at) for at in (box, step))
    assert place % 64 == 0 and (dtype, interleave, fill) == (9, 0, 0) and set(steps) == {1}
    magic = int.from_bytes(b"tnsormap", "little")
    kind = SWIZZLES.index((0, 32, 64, 128)[swizzle])
    result = EncodedTensorMap(magic, base, rank, 2, kind, 0, tuple(sizes), tuple(boxes), (2, *strides))
    ctypes.memmove(place, bytes(result), 128)
    return 0


@contextmanager
def _device(ordinal: int) -> Iterator[SimpleNamespace]:
    """Like cupy.cuda.Device: entering it has no effect if it is current, or if the thread has no context."""
    assert ordinal == 0
    yield SimpleNamespace(use=_bind)


_THREAD = threading.local()


def _bind() -> None:
    """Give the thread the context of the device."""
    _THREAD.bound = True


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Provide a machine with a GPU, as far as `tuner.backends.gpu` can see."""
    with machine(monkeypatch) as result:
        yield result


@contextmanager
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """The same without a fixture."""
    nvrtc.toolkit()  # CuPy's real compiler
    result = Driver()
    cached = (gpu.opened, gpu._gpu, on_gpu._module, gpu.driver_error)
    for name, module in result.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    for entry in cached:
        entry.cache_clear()
    monkeypatch.setattr(tensor_map, "_driver", lambda: SimpleNamespace(cuTensorMapEncodeTiled=_encode_tiled))
    tensor_map.encode.cache_clear()
    yield result
    for entry in cached:
        entry.cache_clear()
