"""A GPU that measures: raw memory, cubins, launches on the default stream, and event times, through CuPy's runtime."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner import operators
from tuner.base.result import Fields
from tuner.errors import MachineError
from tuner.evaluate.measure.device import POISON, Bytes, Call, Code, DeviceFaultError, Fault, Step
from tuner.evaluate.measure.gpu_lock import Presence
from tuner.evaluate.measure.monitor import Monitor
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import State
from tuner.machines import gpu
from tuner.machines.gpu import tensor_map as gpu_tensor_map
from tuner.spec.plan import Plan
from tuner.spec.tensor_map import MappedTensor

_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
_DEFAULT_STREAM = 0
_NOT_READY = 600  # cudaErrorNotReady
_OUT_OF_MEMORY = 2
_TIMED_OUT = 702  # cudaErrorLaunchTimeout: a display's watchdog
# Statuses are cudaError's, which the driver shares. Illegal: assert, stack, instruction, alignment, address, launch.
_ILLEGAL = frozenset({700, 710, 714, 715, 716, 717, 718, 719})
# A call was refused, and the context lives: bad value, no memory, bad configuration, bad or foreign image, resources,
# what the device does not support, a cluster that no part of it has room for.
_REFUSED = frozenset({1, 2, 9, 98, 200, 209, 218, 222, 223, 300, 500, 701, 720, 801, 912})
_UNCAPTURED = range(900, 911)  # cudaErrorStreamCapture…, and graphs that cannot be updated or instantiated
_L2_BYTES = 38  # cudaDevAttrL2CacheSize
_LEAST_FLUSH = 64 << 20  # bytes; clearing them takes longer than the host needs to queue a launch, mostly
_MOST_FLUSHES = 16  # before a launch, where the host needs longer
_COPY_BYTES, _COPIES, _COPY_LIMIT_S = 1 << 30, 10, 10.0


@dataclass(frozen=True)
class _Program:
    functions: dict[str, Any]  # CuPy's, by entry
    symbols: dict[str, int]  # address of each `__constant__` symbol that a launch is to find filled, by argument


@dataclass(frozen=True)
class Physical:
    """A GPU of this machine, by its CUDA ordinal."""

    ordinal: int = 0

    @property
    def bus_id(self) -> str:
        return gpu.bus_id(self.ordinal)

    def open(self) -> "GpuDevice":
        return GpuDevice(self.ordinal)


class GpuDevice:
    """See `device.Device`. Raises MachineError where there is no GPU."""

    executes = True
    thorough = True

    def __init__(self, ordinal: int) -> None:
        self._found = gpu.current_gpu(ordinal)
        cupy = gpu.opened()
        self._cuda, self._runtime, self._ordinal = cupy.cuda, cupy.cuda.runtime, ordinal
        # The fatal fault, which ends the process soon. Until then its traceback keeps all alive that was loaded: to
        # unload a module is to wait for the device, and a kernel that hangs never ends.
        self._lost: DeviceFaultError | None = None
        bus_id = gpu.bus_id(ordinal)
        self._presence = Presence(bus_id)  # before it is opened, so that nobody counts a stranger
        self._open(ordinal)
        self._monitor = Monitor(bus_id)
        self._flush_bytes = max(2 * self._runtime.deviceGetAttribute(_L2_BYTES, ordinal), _LEAST_FLUSH)
        self._flush, self._flushes = self.allocate(self._flush_bytes), 1
        self._events: list[tuple[int, int]] = []

    def facts(self) -> Fields:
        found = self._runtime.getDeviceProperties(self._ordinal)
        return {
            "gpu": self._found.name,
            "arch": self._found.arch.name,
            "model": found["name"].decode(),
            "driver": self._runtime.driverGetVersion(),
            "runtime": self._runtime.runtimeGetVersion(),
            "sm_count": int(found["multiProcessorCount"]),
            "memory_bytes": int(found["totalGlobalMem"]),
            "l2_bytes": int(self._runtime.deviceGetAttribute(_L2_BYTES, self._ordinal)),
            "nvml": self._monitor.present,
            "exclusive": gpu.exclusive(self._ordinal),
            "sm_mhz": self.state().sm_mhz,
            "no_graph": self._no_graph(),
        }

    def allocate(self, nbytes: int) -> int:
        try:
            return int(self._runtime.malloc(nbytes))
        except self._runtime.CUDARuntimeError as error:
            if error.status == _OUT_OF_MEMORY:
                raise MachineError(f"the GPU has no {nbytes} bytes left: measure a smaller problem") from error
            raise self._fault(error) from error

    def free(self, address: int) -> None:
        if not self._lost:  # it would fail, or wait like an unloading
            self._runtime.free(address)

    def fill(self, address: int, nbytes: int) -> None:
        with self._faults():
            self._runtime.memset(address, POISON, nbytes)

    def write(self, address: int, data: Bytes) -> None:
        with self._faults():
            if data.nbytes:
                self._runtime.memcpy(address, data.ctypes.data, data.nbytes, _TO_DEVICE)

    def read(self, address: int, nbytes: int) -> Bytes:
        data = np.empty(nbytes, np.uint8)
        with self._faults():
            if nbytes:
                self._runtime.memcpy(data.ctypes.data, address, nbytes, _TO_HOST)
        return data

    def tensor_map(self, tensor: MappedTensor) -> np.void:
        return gpu_tensor_map.encode(tensor)

    def load(self, code: Code, plan: Plan) -> _Program:
        """What keeps its module loaded."""
        instance = operators.instance(code.instance)
        wanted = {each.name: each.nbytes(instance.problem) for each in instance.operator.constants}
        module = self._cuda.Module()
        with self._faults():
            module.load(code.image)
            functions = {
                launch.entry: module.get_function(code.symbols.get(launch.entry, launch.entry))
                for launch in plan.launches
            }
            for launch in plan.launches:
                gpu.grant_shared(functions[launch.entry], launch.smem_bytes)
            return _Program(functions, gpu.constant_places(module, code.image, wanted))

    def run(self, program: _Program, call: Call, limit_s: float) -> None:
        ((_, end),) = self._pairs(1)
        with self._faults():
            self._fill_symbols(program, call)
            _launch(program, call.steps)
            self._runtime.eventRecord(end, _DEFAULT_STREAM)
            self._wait(end, limit_s)

    def ready(self, program: _Program, call: Call, policy: MeasurementPolicy) -> Callable[[], object]:
        with self._faults():
            self._fill_symbols(program, call)
        if policy.launch == "graph":
            return self._graph(lambda stream: _launch(program, call.steps, stream))
        return lambda: _launch(program, call.steps)

    def _fill_symbols(self, program: _Program, call: Call) -> None:
        """`__constant__` memory keeps what it is given until the next call."""
        sizes = {tensor.name: tensor.nbytes for tensor in call.layout.tensors} if call.layout else {}
        for name, place in program.symbols.items():
            self._runtime.memcpyAsync(place, call.addresses[name], sizes[name], _ON_DEVICE, _DEFAULT_STREAM)

    def ready_copy(self, nbytes: int) -> Callable[[], object]:
        half = max(nbytes // 2, 1)
        source, target = self.allocate(half), self.allocate(half)
        self.fill(source, half)
        return lambda: self._runtime.memcpyAsync(target, source, half, _ON_DEVICE, _DEFAULT_STREAM)

    def times_us(self, ready: Callable[[], object], launches: int, policy: MeasurementPolicy) -> Sequence[float]:
        """Anything that puts work on the default stream when it is called is ready.

        A flush keeps the GPU busy while the host queues what follows. A launch that began before all of it was queued
        may have waited for the host, and does not count; where most did, there are more flushes from then on.
        """
        while True:
            times, late = self._timed(ready, launches, policy)
            if 2 * sum(late) <= launches:
                return [time_us for time_us, missed in zip(times, late, strict=True) if not missed]
            if self._flushes == _MOST_FLUSHES:
                return times
            self._flushes *= 2

    def _timed(
        self, ready: Callable[[], object], launches: int, policy: MeasurementPolicy
    ) -> tuple[list[float], list[bool]]:
        """(microseconds, whether the host was late) of each launch."""
        runtime, pairs, late = self._runtime, self._pairs(launches), list[bool]()
        with self._faults():
            if policy.l2 == "warm":
                self._clear(self._flushes * launches)
                ready()
            for begin, end in pairs:
                if policy.l2 == "cold":
                    self._clear(self._flushes)
                runtime.eventRecord(begin, _DEFAULT_STREAM)
                ready()
                runtime.eventRecord(end, _DEFAULT_STREAM)
                late.append(runtime.eventQuery(begin) != _NOT_READY)
            self._wait(pairs[-1][1], policy.limit_s)
            return [1000.0 * float(runtime.eventElapsedTime(begin, end)) for begin, end in pairs], late

    def state(self) -> State:
        found = self._monitor.state()
        return replace(found, processes=found.processes - self._presence.others()) if found.processes > 1 else found

    def copy_gb_s(self) -> float:
        times = []
        with self._scratch(_COPY_BYTES) as source, self._scratch(_COPY_BYTES) as target, self._faults():
            self.fill(source, _COPY_BYTES)
            for begin, end in self._pairs(_COPIES):
                self._runtime.eventRecord(begin, _DEFAULT_STREAM)
                self._runtime.memcpyAsync(target, source, _COPY_BYTES, _ON_DEVICE, _DEFAULT_STREAM)
                self._runtime.eventRecord(end, _DEFAULT_STREAM)
                self._wait(end, _COPY_LIMIT_S)
                times.append(1e-3 * float(self._runtime.eventElapsedTime(begin, end)))
        return 2e-9 * _COPY_BYTES / float(np.median(times))

    @contextmanager
    def _scratch(self, nbytes: int) -> Iterator[int]:
        """Memory that is given back, also where there is not enough for what is allocated next."""
        address = self.allocate(nbytes)
        try:
            yield address
        finally:
            self.free(address)

    def _open(self, ordinal: int) -> None:
        """Make it the current device, with its context."""
        try:
            self._runtime.setDevice(ordinal)
        except self._runtime.CUDARuntimeError as error:
            why = "it has failed, or another process has all of its memory, or holds it alone"
            raise MachineError(f"the {self._found.name} cannot be opened ({error}): {why}") from error

    def _graph(self, queue: Callable[[Any], object]) -> Callable[[], object]:
        """What replays, on the default stream, all that `queue` puts on a stream of its own: that one is no kernel's.

        Raises DeviceFaultError, not fatal, where the driver captures it not.
        """
        stream = self._cuda.Stream(non_blocking=True)
        with self._faults():
            stream.begin_capture()
            try:
                queue(stream)
            finally:
                graph = stream.end_capture()  # also after a failure, or the stream would capture for ever
            graph.upload(self._cuda.Stream.null)
        return lambda: graph.launch(self._cuda.Stream.null)

    def _no_graph(self) -> str:
        """Why this driver captures no graph; empty where it does."""
        clear = self._runtime.memsetAsync
        try:
            self._graph(lambda stream: clear(self._flush, 0, 1, stream.ptr))
        except DeviceFaultError as error:
            return str(error)
        return ""

    def _clear(self, times: int) -> None:
        for _ in range(times):
            self._runtime.memsetAsync(self._flush, 0, self._flush_bytes, _DEFAULT_STREAM)

    def _pairs(self, count: int) -> list[tuple[int, int]]:
        while len(self._events) < count:
            self._events.append((self._runtime.eventCreate(), self._runtime.eventCreate()))
        return self._events[:count]

    def _wait(self, event: int, limit_s: float) -> None:
        """Until the event has happened; a query, unlike a wait, can be given up."""
        deadline = time.monotonic() + limit_s
        while (status := self._runtime.eventQuery(event)) == _NOT_READY:
            if time.monotonic() > deadline:
                self._lost = DeviceFaultError(Fault.TIMEOUT, f"still running after {limit_s:g} s", fatal=True)
                raise self._lost
            time.sleep(5e-5)
        if status:
            raise self._runtime.CUDARuntimeError(status)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """What the driver and the runtime say, as a fault of the kernel that ran."""
        try:
            yield
        except (self._cuda.driver.CUDADriverError, self._runtime.CUDARuntimeError) as error:
            raise self._fault(error) from error

    def _fault(self, error: Any) -> DeviceFaultError:
        fault = _classified(error)
        if fault.fatal:
            self._lost = fault
        return fault


def _launch(program: _Program, steps: Sequence[Step], stream: Any = None) -> None:
    """On CuPy's current stream, which is the default one, unless another is given."""
    for step in steps:
        launch = step.launch
        program.functions[launch.entry](launch.grid, launch.block, step.arguments, launch.smem_bytes, stream)


def _classified(error: Any) -> DeviceFaultError:
    if error.status in _UNCAPTURED:
        return DeviceFaultError(Fault.REFUSED, f"no CUDA graph captures it ({error})", fatal=False)
    if error.status in _REFUSED:
        return DeviceFaultError(Fault.REFUSED, str(error), fatal=False)
    if error.status in _ILLEGAL:
        return DeviceFaultError(Fault.ILLEGAL, str(error), fatal=True)
    return DeviceFaultError(Fault.TIMEOUT if error.status == _TIMED_OUT else Fault.CRASH, str(error), fatal=True)
