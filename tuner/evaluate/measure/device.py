"""The interface of a device that measures: memory, programs, launches, times, and the faults that can occur.

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
POISON = 0xFF  # the byte that nobody writes: NaN in every float type, and no number that a kernel computes
Bytes = npt.NDArray[np.uint8]


class Fault(Enum):
    """What a config did to the device. Each is a class of failed attempts."""

    REFUSED = "launch refused"  # the driver says no; the process goes on
    ILLEGAL = "illegal access"
    TIMEOUT = "timeout"
    CRASH = "crash"  # the process ended, or stopped answering
    WRONG = "wrong output"
    UNSTEADY = "not deterministic"
    UNTIMED = "no undisturbed sample"
    SPARED = "not run"  # others of its implementation took the device down

    @property
    def stage(self) -> Stage:
        if self in (Fault.WRONG, Fault.UNSTEADY):
            return Stage.VERIFY
        return {Fault.UNTIMED: Stage.TIME, Fault.SPARED: Stage.SPARED}.get(self, Stage.LAUNCH)


class DeviceFaultError(Exception):
    """A kernel failed on the device. Where `fatal`, nothing that this process asks of the device works any more."""

    def __init__(self, fault: Fault, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fault, self.fatal = fault, fatal


@dataclass(frozen=True, slots=True)
class Code:
    """A compiled config, as it travels to the process that owns the device."""

    instance: InstanceFields  # on the problem that is timed
    image: bytes = field(repr=False)  # a cubin; a simulated device needs none
    symbols: Mapping[str, str] = field(default_factory=dict)  # of kernels that the image calls otherwise


@dataclass(frozen=True, slots=True)
class Step:
    """One launch with the value of every parameter, in order, each in its own size."""

    launch: Launch
    arguments: tuple[np.generic, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The launches of a plan on tensors in device memory; none, and no layout, for a device that executes nothing."""

    steps: tuple[Step, ...]
    layout: Layout | None = None
    addresses: Mapping[str, int] = field(default_factory=dict)  # of the layout's tensors that are there


class Device(Protocol):
    """One device, owned by one process. Addresses are plain numbers. Kernels that fail raise DeviceFaultError."""

    executes: bool  # whether timing runs the kernel; where it does not, the timed problem may be of any size
    thorough: bool  # whether runs are cheap: every edge case with every kind of inputs, and twice

    def facts(self) -> Fields:
        """What is known of the device: `gpu` and `arch` as `--gpu` spells them, `model`, driver, SMs, clocks …

        `no_graph` says why it captures no CUDA graph; it is empty where it does.
        """

    def allocate(self, nbytes: int) -> int:
        """The address of fresh memory, a multiple of 256. Raises MachineError where there is no more."""

    def free(self, address: int) -> None: ...

    def fill(self, address: int, nbytes: int) -> None:
        """Set every byte to POISON."""

    def write(self, address: int, data: Bytes) -> None: ...

    def read(self, address: int, nbytes: int) -> Bytes: ...

    def tensor_map(self, tensor: MappedTensor) -> np.void:
        """What a kernel takes by value to copy boxes of a tensor. Raises InputError for what the driver refuses."""

    def load(self, code: Code, plan: Plan) -> Any:
        """A program for `run` and `ready`, with as much shared memory as the plan's launches take."""

    def run(self, program: Any, call: Call, limit_s: float) -> None:
        """Launch and wait; raises DeviceFaultError for what the kernels do, TIMEOUT after `limit_s`."""

    def ready(self, program: Any, call: Call, policy: MeasurementPolicy) -> Any:
        """The call as the policy launches it, for `times_us`. Raises DeviceFaultError where no graph captures it."""

    def ready_copy(self, nbytes: int) -> Any:
        """For `times_us`: a copy that moves `nbytes` bytes, half of them read and half written."""

    def times_us(self, ready: Any, launches: int, policy: MeasurementPolicy) -> Sequence[float]:
        """Microseconds of `launches` runs; runs that waited for the host are left out."""

    def state(self) -> State: ...

    def others(self) -> int:
        """How many other processes may use it beside this one, as those do that take turns at timing."""

    def floor_us(self, policy: MeasurementPolicy) -> float:
        """Microseconds of a kernel that does nothing, launched as the policy says: the least that a time can be.

        0 where nobody can say. Raises DeviceFaultError as `ready` does.
        """

    def copy_gb_s(self) -> float:
        """Bytes read and written a second by a large copy, in 1e9, by a device that is warm: the memory ceiling."""
