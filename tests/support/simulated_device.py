"""A simulated device: correct outputs, and times from a seeded model with the disturbances of real devices.

It implements the protocol of a GPU, so that a complete measuring session except for the driver's calls can be
rehearsed, and its faults provoked, on any machine.
"""

import math
import os
import signal
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from tuner import arch, operators
from tuner.backends import emulator
from tuner.backends.emulator import Buffer, Mode
from tuner.base.canonical_json import encode
from tuner.base.fields import Fields, Scalar
from tuner.compiler.render import render
from tuner.evaluate.measure.device import POISON, SIMULATED, Bytes, Call, Code, DeviceFaultError, Fault
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import State
from tuner.evaluate.predict.cost import uncompiled
from tuner.spec.instance import Instance
from tuner.spec.layout import Layout
from tuner.spec.plan import Plan
from tuner.spec.problem import Array, canonical
from tuner.spec.tensor_map import MappedTensor

_CLOCK_MHZ, _THROTTLED_MHZ, _HOT = 1980, 1200, 0x40  # NVML: hardware thermal slowdown
_OUT_OF_BOUNDS = 64  # bytes past the end of an output that a planted fault writes
_POWER_CAP, _GOVERNED_US = 0x04, 10_000.0  # NVML; time constant of the clock's approach to the power limit
_FULL = 0.999  # fraction of the full clock
_LIKE_THE_LAST = 0.9  # correlation of a run's drift with that of the previous run
_UNPREDICTED = 0.15  # standard deviation of a time around its prediction


@dataclass(frozen=True, slots=True)
class Plant:
    """The behaviour of configs whose `field` is `value`: a Fault by name, "stuck" (the process hangs) or "overrun"."""

    field: str
    value: Scalar
    what: str


@dataclass(frozen=True)
class Simulation:
    """Seeded: equal simulations give equal sessions. Probabilities are per sample; `drift` is relative."""

    gpu: str = "sm_90a"
    seed: int = 0
    noise: float = 0.01
    drift: float = 0.02
    lies: float = 0.01  # samples that are far off without a sign of it
    throttled: float = 0.02  # samples that are slow, with a state that reports it
    spell: tuple[int, int, float] = (0, 0, 1.0)  # from this run to before that one, times are × that, without a sign
    period: float = 300.0  # runs per period of a drift
    wander: float = 0.0  # relative noise that is correlated with that of the previous runs
    bursts: tuple[float, int, float] = (0.0, 0, 1.0)  # with this probability, so many consecutive runs are × that
    every: tuple[int, float] = (0, 1.0)  # one run in so many is × that
    emulated: bool = False  # run the generated code on the emulator; otherwise the reference replaces every kernel
    plants: tuple[Plant, ...] = ()
    times_us: tuple[tuple[str, float], ...] = ()  # (canonical config, time); others take the predicted time
    clocks: tuple[
        tuple[str, float], ...
    ] = ()  # (canonical config, fraction to which its power lowers the clock); others: 1
    floor_us: float = 0.0  # time of an empty kernel
    uuid: str = "GPU-simulated"
    broken: bool = False  # every launch fails
    bus_id: str = ""  # UUID of a device that several processes share; otherwise each has its own

    def open(self) -> "SimulatedDevice":
        return SimulatedDevice(self)


def _release(buffers: Mapping[int, Buffer]) -> None:
    """The memory of a lost device: every launch on the emulator would access it."""
    for buffer in buffers.values():
        buffer.close()


@dataclass(frozen=True)
class _Ready:
    """A timed kernel: microseconds at full clock, and the fraction to which its power lowers the clock."""

    time_us: float
    clock: float = 1.0


@dataclass(frozen=True)
class _Program:
    """A config as this device runs it."""

    instance: Instance
    timed: _Ready
    plants: frozenset[str]
    kernel: emulator.Kernel | None


class SimulatedDevice:
    """See `device.Device`."""

    executes = False

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.thorough = not simulation.emulated
        self._gpu = arch.gpu(simulation.gpu)
        self._rng = np.random.default_rng(simulation.seed)
        self._buffers: dict[int, Buffer] = {}
        weakref.finalize(self, _release, self._buffers)
        self._runs = 0
        self._hot = False
        self._clock = 1.0  # fraction of the full clock
        self._flips = 0
        self._wandered = 0.0
        self._burst_ends = 0  # the run

    def facts(self) -> Fields:
        model = self._simulation
        facts = {"gpu": self._gpu.name, "arch": self._gpu.arch.name, "model": SIMULATED}
        return {**facts, "uuid": model.uuid, "seed": model.seed}

    def allocate(self, nbytes: int) -> int:
        buffer = Buffer("device", max(nbytes, 1), writable=True)
        self._buffers[buffer.address] = buffer
        return buffer.address

    def free(self, address: int) -> None:
        self._buffers.pop(address).close()

    def fill(self, address: int, nbytes: int) -> None:
        self._at(address, nbytes)[:] = POISON

    def write(self, address: int, data: Bytes) -> None:
        self._at(address, data.nbytes)[:] = data

    def read(self, address: int, nbytes: int) -> Bytes:
        return self._at(address, nbytes).copy()

    def tensor_map(self, tensor: MappedTensor) -> np.void:
        return emulator.encode(tensor)

    def load(self, code: Code, plan: Plan) -> _Program:  # noqa: ARG002  # part of the protocol
        instance = operators.instance(code.instance)
        plants = frozenset(
            plant.what for plant in self._simulation.plants if code.instance.config.get(plant.field) == plant.value
        )
        if Fault.REFUSED.name in plants:
            raise DeviceFaultError(Fault.REFUSED, "planted", fatal=False)
        kernel = None
        if self._simulation.emulated:
            kernel = emulator.build(render(instance, "host"), checked=False)
        config = encode(code.instance.config)
        time_us = dict(self._simulation.times_us).get(config) or self._modelled(instance)
        return _Program(instance, _Ready(time_us, dict(self._simulation.clocks).get(config, 1.0)), plants, kernel)

    def run(self, program: _Program, call: Call, limit_s: float) -> None:
        self._fail_if_broken()
        _provoke(program.plants, limit_s)
        if program.kernel:
            _emulate(program.kernel, call, self._gpu.arch.name)
        else:
            self._stand_in(program, call)
        self._spoil(program, call)

    def ready(self, program: _Program, call: Call, policy: MeasurementPolicy) -> _Ready:  # noqa: ARG002  # protocol
        return program.timed

    def ready_copy(self, nbytes: int) -> _Ready:
        return _Ready(1e-3 * nbytes / self.copy_gb_s())

    def times_us(self, ready: _Ready, launches: int, policy: MeasurementPolicy) -> Sequence[float]:  # noqa: ARG002
        """Return the times of a sample; one with a silent error or throttling has it in all its launches."""
        model = self._simulation
        self._runs += 1
        self._hot = bool(self._rng.random() < model.throttled)
        factor = 1 + model.drift * math.sin(2 * math.pi * self._runs / model.period)
        factor *= self._neighbours()
        factor *= 1.4 if self._hot else 1.0
        factor *= model.spell[2] if model.spell[0] <= self._runs < model.spell[1] else 1.0
        factor *= float(self._rng.choice([0.4, 3.0])) if self._rng.random() < model.lies else 1.0
        noise = np.exp(model.noise * self._rng.standard_normal())
        factor /= self._clock
        self._clock += (ready.clock - self._clock) * -math.expm1(-ready.time_us * launches / _GOVERNED_US)
        return [ready.time_us * factor * float(noise)] * launches

    def _neighbours(self) -> float:
        """Return the common disturbance of consecutive runs, and of runs one period apart."""
        model, factor = self._simulation, 1.0
        if model.wander:
            new = math.sqrt(1 - _LIKE_THE_LAST**2) * float(self._rng.standard_normal())
            self._wandered = _LIKE_THE_LAST * self._wandered + new
            factor *= math.exp(model.wander * self._wandered)
        chance, runs, slower = model.bursts
        if chance and self._runs >= self._burst_ends and self._rng.random() < chance:
            self._burst_ends = self._runs + runs
        factor *= slower if self._runs < self._burst_ends else 1.0
        return factor * (model.every[1] if model.every[0] and self._runs % model.every[0] == 0 else 1.0)

    def state(self) -> State:
        if self._hot:
            return State(_THROTTLED_MHZ, _HOT, 90, 1)
        return State(round(self._clock * _CLOCK_MHZ), _POWER_CAP * (self._clock < _FULL), 60, 1)

    def others(self) -> int:
        return 0

    def _fail_if_broken(self) -> None:
        if self._simulation.broken:
            raise DeviceFaultError(Fault.CRASH, "the device has fallen off the bus", fatal=True)

    def floor_us(self, policy: MeasurementPolicy) -> float:  # noqa: ARG002  # protocol
        self._fail_if_broken()
        return self._simulation.floor_us

    def copy_gb_s(self) -> float:
        return float(self._gpu.device.dram_gb_s)

    def _at(self, address: int, nbytes: int) -> Bytes:
        """Return the bytes at an address inside a buffer."""
        begin = max(start for start in self._buffers if start <= address)
        whole = self._buffers[begin].view(np.uint8, (self._buffers[begin].nbytes,))
        return whole[address - begin : address - begin + nbytes]

    def _modelled(self, instance: Instance) -> float:
        """Return the predicted cost as a time, with a typical prediction error."""
        cycles = uncompiled(instance.plan(), instance.work(self._gpu), self._gpu).cost
        seed = f"{self._simulation.seed}{instance.implementation.name}{canonical(instance.config)}"
        off = np.random.default_rng(crc32(seed.encode()))
        return float(cycles / self._gpu.device.clock_mhz * np.exp(_UNPREDICTED * off.standard_normal()))

    def _stand_in(self, program: _Program, call: Call) -> None:
        """Return the reference, rounded as kernels round it, in place of the kernels' outputs."""
        operator, tensors = program.instance.operator, self._tensors(call)
        layout = _layout(call)
        given = {tensor.name: tensors[tensor.name] for tensor in layout.tensors if tensor.initial is not None}
        right = operator.rounded(layout.problem, {**layout.scalars, **given})
        for argument in operator.written:
            tensors[argument.name][...] = right[argument.name]

    def _spoil(self, program: _Program, call: Call) -> None:
        """Apply planted faults to the first output."""
        name = program.instance.operator.outputs[0].name
        tensor = self._tensors(call)[name]
        if Fault.WRONG.name in program.plants:
            tensor.reshape(-1)[0] += 1000
        if Fault.UNSTEADY.name in program.plants:
            self._flips += 1
            tensor.reshape(-1).view(np.uint8)[0] ^= self._flips & 1  # one bit, in every other run
        if "overrun" in program.plants:
            self._at(call.addresses[name] + tensor.nbytes + _OUT_OF_BOUNDS, 1)[:] = 0

    def _tensors(self, call: Call) -> dict[str, Array]:
        """Return all arrays of the call with their addresses."""
        nothing = np.empty(0, np.uint8)
        return {
            tensor.name: tensor.view(self._at(call.addresses[tensor.name], tensor.nbytes) if tensor.nbytes else nothing)
            for tensor in _layout(call).tensors
        }


def _layout(call: Call) -> Layout:
    assert call.layout is not None, "what is run has tensors"
    return call.layout


def _emulate(kernel: emulator.Kernel, call: Call, arch: str) -> None:
    for step in call.steps:
        run = kernel.run(step.launch, step.arguments, Mode(), arch=arch)
        if run.findings:
            raise DeviceFaultError(Fault.ILLEGAL, str(run.findings[0]), fatal=True)


def _provoke(plants: frozenset[str], limit_s: float) -> None:
    if "stuck" in plants:
        time.sleep(3600)
    if Fault.CRASH.name in plants:
        os.kill(os.getpid(), signal.SIGSEGV)
    if Fault.TIMEOUT.name in plants:
        raise DeviceFaultError(Fault.TIMEOUT, f"still running after {limit_s:g} s", fatal=True)
    if Fault.ILLEGAL.name in plants:
        raise DeviceFaultError(Fault.ILLEGAL, "planted", fatal=True)
