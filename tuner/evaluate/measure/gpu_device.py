"""A GPU for measuring: raw memory, cubins, launches on the default stream, and event times, through CuPy's runtime."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tuner import operators
from tuner.backends import gpu
from tuner.backends.gpu import tensor_map as gpu_tensor_map
from tuner.backends.gpu.instruments import Instruments
from tuner.base.fields import Fields
from tuner.errors import MachineError
from tuner.evaluate.measure.device import POISON, Bytes, Call, Code, DeviceFaultError, Fault, Step
from tuner.evaluate.measure.gpu_lock import Presence
from tuner.evaluate.measure.monitor import Monitor
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import State, typical
from tuner.spec.plan import Plan
from tuner.spec.tensor_map import MappedTensor

_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
_DEFAULT_STREAM = 0
_NOT_READY = 600  # cudaErrorNotReady
_OUT_OF_MEMORY = 2
_TIMED_OUT = 702  # cudaErrorLaunchTimeout: the watchdog of a display
# Values of cudaError, which the driver shares. Illegal: assert, stack, instruction, alignment, address, launch.
_ILLEGAL = frozenset({700, 710, 714, 715, 716, 717, 718, 719})
# The call was rejected, and the context remains valid: invalid value, out of memory, invalid configuration, invalid or
# foreign image, resources, unsupported feature, cluster too large.
_REFUSED = frozenset({1, 2, 9, 98, 200, 209, 218, 222, 223, 300, 500, 701, 720, 801, 912})
_UNCAPTURED = range(900, 911)  # cudaErrorStreamCapture…, and graphs that cannot be updated or instantiated
_L2_BYTES = 38  # cudaDevAttrL2CacheSize
_LEAST_FLUSH = 64 << 20  # minimum flush size in bytes, for a small L2 cache
_COPY_BYTES, _COPIES, _COPY_LIMIT_S = 1 << 30, 10, 10.0
_COPY_WARM_S = 0.1  # duration of copies before the first measured one, because clocks take that long to rise
_QUEUE = 512  # commands queued on a held stream; with 1024 the driver blocks the host, which deadlocks until the limit
_AROUND = 4  # commands per timed launch besides the launch: two events, and the write and read of the flush
_FOREIGN = 16  # assumed launches per call of a peer; with more, the hold expires and is detected
_FLOOR_LAUNCHES, _FLOOR_SAMPLES = 32, 5


@dataclass(frozen=True, eq=False)
class _Ready:
    """A callable that queues `launches` launches on the default stream."""

    queue: Callable[[], object]
    launches: int = 1

    def __call__(self) -> object:
        return self.queue()


@dataclass(frozen=True)
class _Program:
    functions: dict[str, Any]  # CuPy functions by entry
    symbols: dict[str, int]  # addresses of `__constant__` symbols that must be filled before a launch, by argument


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
    """A GPU; see `device.Device`. Raises MachineError if there is none."""

    executes = True
    thorough = True

    def __init__(self, ordinal: int) -> None:
        self._found = gpu.current_gpu(ordinal)
        cupy = gpu.opened()
        self._cuda, self._runtime, self._ordinal = cupy.cuda, cupy.cuda.runtime, ordinal
        # The fatal fault, after which the process ends soon. Until then its traceback keeps all modules loaded, because
        # unloading one waits for the device, and a hanging kernel never ends.
        self._lost: DeviceFaultError | None = None
        bus_id = gpu.bus_id(ordinal)
        # Before the device is opened, so that other processes do not count this one as a stranger.
        self._presence = Presence(bus_id)
        self._open(ordinal)
        self._monitor = Monitor(bus_id)
        self._flush_bytes = max(2 * self._runtime.deviceGetAttribute(_L2_BYTES, ordinal), _LEAST_FLUSH)
        self._flush = self.allocate(self._flush_bytes)
        self._events: list[tuple[int, int]] = []
        # Number of runs timed together on a held stream; 0 for runs that wait for the device themselves.
        self._at_once: WeakKeyDictionary[Callable[[], object], int] = WeakKeyDictionary()
        self._late = 0.0

    def facts(self) -> Fields:
        properties = self._runtime.getDeviceProperties(self._ordinal)
        return {
            "gpu": self._found.name,
            "arch": self._found.arch.name,
            "model": properties["name"].decode(),
            "uuid": gpu.uuid(self._ordinal),
            "driver": self._runtime.driverGetVersion(),
            "runtime": self._runtime.runtimeGetVersion(),
            "sm_count": int(properties["multiProcessorCount"]),
            "memory_bytes": int(properties["totalGlobalMem"]),
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
        if not self._lost:  # after a fault it would fail or block
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
        """Load a program, which keeps its module loaded."""
        instance = operators.instance(code.instance)
        wanted = {constant.name: constant.nbytes(instance.problem) for constant in instance.operator.constants}
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
            return _Ready(self._graph(lambda stream: _launch(program, call.steps, stream)), len(call.steps))
        return _Ready(lambda: _launch(program, call.steps), len(call.steps))

    def _fill_symbols(self, program: _Program, call: Call) -> None:
        """Fill `__constant__` memory, which keeps its contents until the next call."""
        sizes = {tensor.name: tensor.nbytes for tensor in call.layout.tensors} if call.layout else {}
        for name, address in program.symbols.items():
            self._runtime.memcpyAsync(address, call.addresses[name], sizes[name], _ON_DEVICE, _DEFAULT_STREAM)

    def ready_copy(self, nbytes: int) -> Callable[[], object]:
        half = max(nbytes // 2, 1)
        source, target = self.allocate(half), self.allocate(half)
        self.fill(source, half)
        return _Ready(lambda: self._runtime.memcpyAsync(target, source, half, _ON_DEVICE, _DEFAULT_STREAM))

    def times_us(self, ready: Callable[[], object], launches: int, policy: MeasurementPolicy) -> Sequence[float]:
        """Time any callable that queues work on the default stream.

        The stream is held while the host queues the timed work, so that the device never waits for the host. A callable
        that itself waits for the device, as some peers do, cannot be queued: the hold then expires, and from then on
        its launches are timed without one. In that case, launches that started before they were completely queued may
        have waited for the host and do not count, unless most of them did: `state().late` is their fraction.
        """
        times: list[float] = []
        late: list[bool] = []
        while len(late) < launches:
            some, missed = self._timed(ready, launches - len(late), policy)
            times, late = [*times, *some], [*late, *missed]
        self._late = sum(late) / launches
        if 2 * sum(late) > launches:
            return times
        return [time_us for time_us, missed in zip(times, late, strict=True) if not missed]

    def _timed(
        self, ready: Callable[[], object], most: int, policy: MeasurementPolicy
    ) -> tuple[list[float], list[bool]]:
        """Return (microseconds, whether the host was late) of launches queued together; empty if the hold expired."""
        at_once = self._known(ready, policy.limit_s)
        pairs, late = self._pairs(min(at_once or most, most)), list[bool]()
        with self._faults():
            with self._instruments.held() if at_once else nullcontext():
                if policy.l2 == "warm":
                    self._clear()
                    ready()
                for begin, end in pairs:
                    if policy.l2 == "cold":
                        self._clear()
                    self._runtime.eventRecord(begin, _DEFAULT_STREAM)
                    ready()
                    self._runtime.eventRecord(end, _DEFAULT_STREAM)
                    late.append(not at_once and self._runtime.eventQuery(begin) != _NOT_READY)
            self._wait(pairs[-1][1], policy.limit_s)
            if at_once and self._instruments.expired:
                self._at_once[ready] = int(at_once > 1)  # one at a time, and then without a hold
                return [], []
            return [1000.0 * float(self._runtime.eventElapsedTime(begin, end)) for begin, end in pairs], late

    def _known(self, ready: Callable[[], object], limit_s: float) -> int:
        """Return how many runs are timed together.

        A new callable runs once before, because a first launch may load its code or enlarge the stack memory, and both
        wait for the device.
        """
        if ready not in self._at_once:
            ((_, end),) = self._pairs(1)
            with self._faults():
                ready()
                self._runtime.eventRecord(end, _DEFAULT_STREAM)
                self._wait(end, limit_s)
            launches = ready.launches if isinstance(ready, _Ready) else _FOREIGN
            self._at_once[ready] = max(1, _QUEUE // (launches + _AROUND)) if self._instruments.holds else 0
        return self._at_once[ready]

    def state(self) -> State:
        state = replace(self._monitor.state(), late=self._late)
        return replace(state, processes=state.processes - self.others()) if state.processes > 1 else state

    def others(self) -> int:
        return self._presence.others()

    def floor_us(self, policy: MeasurementPolicy) -> float:
        idle: Callable[[], object] = _Ready(self._instruments.idle)
        if policy.launch == "graph":
            idle = _Ready(self._graph(self._instruments.idle))
        return float(np.median([typical(self.times_us(idle, _FLOOR_LAUNCHES, policy)) for _ in range(_FLOOR_SAMPLES)]))

    def copy_gb_s(self) -> float:
        with self._scratch(_COPY_BYTES) as source, self._scratch(_COPY_BYTES) as target, self._faults():
            self.fill(source, _COPY_BYTES)
            warm = time.monotonic() + _COPY_WARM_S
            while time.monotonic() < warm:
                self._copied(source, target)
            return 2e-9 * _COPY_BYTES / float(np.median(self._copied(source, target)))

    def _copied(self, source: int, target: int) -> list[float]:
        """Return the seconds of consecutive copies."""
        pairs = self._pairs(_COPIES)
        for begin, end in pairs:
            self._runtime.eventRecord(begin, _DEFAULT_STREAM)
            self._runtime.memcpyAsync(target, source, _COPY_BYTES, _ON_DEVICE, _DEFAULT_STREAM)
            self._runtime.eventRecord(end, _DEFAULT_STREAM)
        self._wait(pairs[-1][1], _COPY_LIMIT_S)
        return [1e-3 * float(self._runtime.eventElapsedTime(begin, end)) for begin, end in pairs]

    @cached_property
    def _instruments(self) -> Instruments:
        """The instruments, loaded on first use, after which everything that a held stream needs has run once."""
        with self._faults():
            instruments = Instruments(self._found.arch.name)
            self._runtime.memsetAsync(self._flush, 0, self._flush_bytes, _DEFAULT_STREAM)
        return instruments

    @contextmanager
    def _scratch(self, nbytes: int) -> Iterator[int]:
        """Allocate temporary memory, which is also freed if a later allocation fails."""
        address = self.allocate(nbytes)
        try:
            yield address
        finally:
            self.free(address)

    def _open(self, ordinal: int) -> None:
        """Make it the current device and create its context."""
        try:
            self._runtime.setDevice(ordinal)
        except self._runtime.CUDARuntimeError as error:
            why = "it has failed, or another process uses all of its memory or has exclusive access"
            raise MachineError(f"the {self._found.name} cannot be opened ({error}): {why}") from error

    def _graph(self, queue: Callable[[Any], object]) -> Callable[[], object]:
        """Return a replay, on the default stream, of everything that `queue` puts on a capturing stream.

        Raises DeviceFaultError, not fatal, if the driver cannot capture it.
        """
        stream = self._cuda.Stream(non_blocking=True)
        with self._faults():
            stream.begin_capture()
            try:
                queue(stream)
            finally:
                # Also after a failure, since the stream would stay in capture mode otherwise.
                graph = stream.end_capture()
            graph.upload(self._cuda.Stream.null)
        return lambda: graph.launch(self._cuda.Stream.null)

    def _no_graph(self) -> str:
        """Return why this driver captures no graph; empty if it does."""
        clear = self._runtime.memsetAsync
        try:
            self._graph(lambda stream: clear(self._flush, 0, 1, stream.ptr))
        except DeviceFaultError as error:
            return str(error)
        return ""

    def _clear(self) -> None:
        """Flush the L2 cache, so that it contains no lines of a kernel and no dirty lines, which the next kernel would
        write back.
        """
        self._runtime.memsetAsync(self._flush, 0, self._flush_bytes, _DEFAULT_STREAM)
        self._instruments.read(self._flush, self._flush_bytes)

    def _pairs(self, count: int) -> list[tuple[int, int]]:
        while len(self._events) < count:
            self._events.append((self._runtime.eventCreate(), self._runtime.eventCreate()))
        return self._events[:count]

    def _wait(self, event: int, limit_s: float) -> None:
        """Wait for the event by polling, which can be given up."""
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
        """Convert errors of the driver and the runtime into faults of the kernel that ran."""
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
    """Launch on CuPy's current stream, which is the default one, unless another is given."""
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
