"""The interface of a device: memory, programs, launches, times, and possible faults.

`gpu_device.GpuDevice` implements it, and in the tests `tests.support.simulated_device.SimulatedDevice`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tuner.base.fields import Fields
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import State
from tuner.results.attempt import Stage
from tuner.spec.instance import InstanceFields
from tuner.spec.layout import Layout
from tuner.spec.plan import Launch, Plan
from tuner.spec.tensor_map import MappedTensor

SIMULATED = "simulated"  # the model name of a simulated device
POISON = 0xFF  # fill byte for unwritten memory: NaN in every float type, and not a result that a kernel computes
Bytes = npt.NDArray[np.uint8]


class Fault(Enum):
    """Device faults, each a class of failed attempts."""

    REFUSED = "launch refused"  # the driver rejects it; the process continues
    ILLEGAL = "illegal access"
    TIMEOUT = "timeout"
    CRASH = "crash"  # the process exited or stopped responding
    WRONG = "wrong output"
    UNSTEADY = "not deterministic"
    UNTIMED = "no undisturbed sample"
    SPARED = "not run"  # other configs of its implementation crashed the device

    @property
    def stage(self) -> Stage:
        if self in (Fault.WRONG, Fault.UNSTEADY):
            return Stage.VERIFY
        return {Fault.UNTIMED: Stage.TIME, Fault.SPARED: Stage.SPARED}.get(self, Stage.LAUNCH)


class DeviceFaultError(Exception):
    """A kernel failed on the device. After a `fatal` fault, the process can no longer use the device."""

    def __init__(self, fault: Fault, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fault, self.fatal = fault, fatal


@dataclass(frozen=True, slots=True)
class Code:
    """A compiled config, as sent to the process that owns the device."""

    instance: InstanceFields  # on the timed problem
    image: bytes = field(repr=False)  # a cubin; a simulated device needs none
    symbols: Mapping[str, str] = field(default_factory=dict)  # symbols of kernels that differ from their names


@dataclass(frozen=True, slots=True)
class Step:
    """One launch with the values of all parameters in order, each in its own type."""

    launch: Launch
    arguments: tuple[np.generic, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The launches of a plan on tensors in device memory; empty for a device that executes nothing."""

    steps: tuple[Step, ...]
    layout: Layout | None = None
    addresses: Mapping[str, int] = field(default_factory=dict)  # addresses of the layout's present tensors


class Device(Protocol):
    """A device that is owned by one process. Addresses are integers. Failing kernels raise DeviceFaultError."""

    executes: bool  # whether timing runs the kernel; if not, the timed problem may have any size
    thorough: bool  # whether runs are cheap enough for every edge case with every kind of inputs, twice

    def facts(self) -> Fields:
        """Return the device's properties: `gpu` and `arch` as in `--gpu`, `model`, driver, SMs, clocks …

        `no_graph` says why it captures no CUDA graph; empty if it does.
        """

    def allocate(self, nbytes: int) -> int:
        """Allocate memory and return its address, a multiple of 256. Raises MachineError if there is not enough."""

    def free(self, address: int) -> None: ...

    def fill(self, address: int, nbytes: int) -> None:
        """Set every byte to POISON."""

    def write(self, address: int, data: Bytes) -> None: ...

    def read(self, address: int, nbytes: int) -> Bytes: ...

    def tensor_map(self, tensor: MappedTensor) -> np.void:
        """Encode a tensor map for a kernel parameter. Raises InputError for tensors that the driver rejects."""

    def load(self, code: Code, plan: Plan) -> Any:
        """Load a program for `run` and `ready`, with the shared memory that the plan's launches need."""

    def run(self, program: Any, call: Call, limit_s: float) -> None:
        """Launch and wait. Raises DeviceFaultError for faults of the kernels, and TIMEOUT after `limit_s`."""

    def ready(self, program: Any, call: Call, policy: MeasurementPolicy) -> Any:
        """Prepare the call for `times_us`, with the policy's launch mode. Raises DeviceFaultError if graph capture
        fails.
        """

    def ready_copy(self, nbytes: int) -> Any:
        """Prepare for `times_us` a copy that moves `nbytes` bytes, half of them read and half written."""

    def times_us(self, ready: Any, launches: int, policy: MeasurementPolicy) -> Sequence[float]:
        """Return the microseconds of `launches` runs, without runs that waited for the host."""

    def state(self) -> State: ...

    def others(self) -> int:
        """Return the number of other processes on the device that do not take turns at timing with this one."""

    def floor_us(self, policy: MeasurementPolicy) -> float:
        """Return the microseconds of an empty kernel with the policy's launch mode, the minimum of any time.

        0 if unknown. Raises DeviceFaultError like `ready`.
        """

    def copy_gb_s(self) -> float:
        """Return the bandwidth of a large copy (bytes read and written) in GB/s on a warmed-up device: the memory
        ceiling.
        """
