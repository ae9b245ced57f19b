"""The process that owns the device, and its client: a config that crashes the device affects only itself."""

import resource
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np

from tuner import operators
from tuner.base.canonical_json import encode
from tuner.base.fields import Fields
from tuner.base.pool import Limits, Lost, Pool
from tuner.base.self_closing import Closing
from tuner.errors import InputError, MachineError
from tuner.evaluate.measure.crash_ledger import CrashStreaks
from tuner.evaluate.measure.device import Call, Code, Device, DeviceFaultError, Fault
from tuner.evaluate.measure.device_arguments import Arena
from tuner.evaluate.measure.device_check import DeviceCheck, cases
from tuner.evaluate.measure.gpu_lock import exclusive, shared
from tuner.evaluate.measure.messages import (
    Answer,
    DescribeRequest,
    DeviceDescription,
    DeviceFailure,
    Question,
    RaceRequest,
    RaceResult,
    TimingRequest,
    TimingResult,
)
from tuner.evaluate.measure.policy import LAUNCHES, MeasurementPolicy
from tuner.evaluate.measure.samples import Sample, State, disturbed, screen, usual
from tuner.evaluate.measure.timer import Timer
from tuner.spec.problem import Array

_PATIENCE_S = 120.0  # time limit for an answer, which includes drawing inputs and computing references
_REMEMBERED = 256  # number of device states that define the usual state


class DeviceOpener(Hashable, Protocol):
    """A hashable, picklable value that opens a device in the process that will own it."""

    @property
    def bus_id(self) -> str:
        """Identifier of the GPU that all of its users share, including MIG slices; empty if nobody shares it."""

    def open(self) -> Device: ...


class Worker(Closing):
    """A context manager around the device process. Requests return an answer or the crash; the process restarts after
    one.
    """

    def __init__(self, opener: DeviceOpener, patience_s: float = _PATIENCE_S) -> None:
        self._place, self._patience_s = opener, patience_s
        # CUDA maps the whole memory of the machine, so the address space is not limited.
        memory = resource.getrlimit(resource.RLIMIT_AS)[1]
        self._pool: Pool[tuple[DeviceOpener, Question], Answer] = Pool(
            _serve, workers=1, limits=Limits(timeout_s=patience_s, memory_bytes=memory)
        )
        self._falls = CrashStreaks()
        self.restarts = 0

    def close(self) -> None:
        self._pool.close()

    def pids(self) -> tuple[int, ...]:
        return self._pool.pids()

    def rest(self) -> None:
        """End the process and release its device memory; the next request starts another one."""
        self.close()
        self.restarts += 1

    def describe(self, *, ceilings: bool = False) -> DeviceDescription:
        """Describe the device. Raises MachineError if there is none."""
        return _sure(self._ask(DescribeRequest(ceilings)), DeviceDescription)

    def time(self, task: TimingRequest) -> TimingResult:
        """Time a config; SPARED, without a request, if other configs of its implementation crashed the device."""
        implementation = task.code.instance.name
        if reason := self._falls.reason(implementation):
            return TimingResult(None, failure=DeviceFailure(Fault.SPARED, reason))
        timed = self._judged_and_timed(task)
        fatal = timed.failure.reason if timed.failure and timed.failure.fatal else ""
        config = encode([task.code.instance.problem, task.code.instance.config])
        self._falls.record(implementation, config, fatal, timed=bool(timed.samples))
        return timed

    def race(self, heat: RaceRequest) -> RaceResult:
        answer = self._ask(heat)
        return RaceResult(failure=answer) if isinstance(answer, DeviceFailure) else _sure(answer, RaceResult)

    def _judged_and_timed(self, task: TimingRequest) -> TimingResult:
        """Check and time in two requests, since a check does not need exclusive access to the GPU."""
        if not (task.judged and task.timed):
            return _timed(self._ask(task))
        judged = _timed(self._ask(replace(task, timed=False)))
        if judged.failure is not None:
            return judged
        return replace(_timed(self._ask(replace(task, judged=False))), verdict=judged.verdict)

    def _ask(self, question: Question) -> Answer | DeviceFailure:
        """Send a request. Locks are acquired here, so that waiting for other processes does not count as a timeout."""
        with _access(question)(self._place.bus_id):
            return self._answer(question)

    def _answer(self, question: Question) -> Answer | DeviceFailure:
        started = time.monotonic()
        ((_, answer),) = self._pool.run([(self._place, question)])
        if isinstance(answer, Lost):
            late = time.monotonic() - started >= self._patience_s
            self.restarts += 1
            return DeviceFailure(Fault.TIMEOUT if late else Fault.CRASH, answer.reason, fatal=True)
        fell = getattr(answer, "failure", None)
        if fell and fell.fatal:
            self._pool.close()
            self.restarts += 1
        return answer


def _access(question: Question) -> Callable[[str], AbstractContextManager[None]]:
    """Return the lock that a request needs on a shared GPU: exclusive if something is timed."""
    if isinstance(question, DescribeRequest):
        return exclusive if question.ceilings else lambda _: nullcontext()
    return exclusive if isinstance(question, RaceRequest) or question.timed else shared


def _timed(answer: Answer | DeviceFailure) -> TimingResult:
    return TimingResult(None, failure=answer) if isinstance(answer, DeviceFailure) else _sure(answer, TimingResult)


A = TypeVar("A")


def _sure(answer: object, kind: type[A]) -> A:
    if isinstance(answer, DeviceFailure):
        raise MachineError(f"the device process does not answer: {answer.reason}")
    assert isinstance(answer, kind), "the answer has the type of its request"
    return answer


def _serve(job: tuple[DeviceOpener, Question]) -> Answer:
    opener, question = job
    return _stand(opener).do(question)


@cache
def _stand(opener: DeviceOpener) -> "DeviceServer":
    return DeviceServer(opener.open())


@dataclass(slots=True)
class _Timed:
    """The timed problem: its tensors, and the outputs of the first correct kernel."""

    key: str
    arena: Arena | None  # None if the device does not execute kernels
    agreed: dict[str, Array]


class DeviceServer:
    """A device with a timed problem: configs are checked, timed and raced.

    `draw(code)` returns the inputs for timing.
    """

    def __init__(self, device: Device, draw: Callable[[Code], Mapping[str, Any]] | None = None) -> None:
        self.device, self._draw = device, draw or _drawn
        self._model = str(device.facts()["model"])
        self._states: deque[State] = deque(maxlen=_REMEMBERED)
        self._timed = _Timed("", None, {})
        self._floors_us: dict[str, float] = {}

    def do(self, question: Question) -> Answer:
        if isinstance(question, DescribeRequest):
            return self._look(question)
        return self._race(question) if isinstance(question, RaceRequest) else self._time(question)

    def _look(self, look: DescribeRequest) -> DeviceDescription:
        try:
            facts = self.device.facts()
            return DeviceDescription({**facts, **(self._ceilings(facts) if look.ceilings else {})})
        except DeviceFaultError as error:
            why = "it cannot be used for measuring"
            raise MachineError(f"the device fails at a plain copy or an idle kernel ({error}): {why}") from error

    def _ceilings(self, facts: Fields) -> Fields:
        """Measure the peak copy rate, and the launch overhead in each available launch mode."""
        ways = dict.fromkeys(MeasurementPolicy(launch=way).on(facts).launch for way in LAUNCHES)
        floors = {f"floor_{way}_us": self._floor_us(MeasurementPolicy(launch=way)) for way in ways}
        return {"copy_gb_s": self.device.copy_gb_s(), **floors}

    def _time(self, task: TimingRequest) -> TimingResult:
        """Check, then time: incorrect configs are never timed."""
        verdict = None
        try:
            if task.judged:
                judge = self._judge(task)
                verdict = judge.verdict(self._model)
                if not verdict.ok:
                    return TimingResult(verdict, failure=DeviceFailure(judge.fault, verdict.reason))
            if not task.timed:
                return TimingResult(verdict)
            timer = self.timer(task.code, task.policy)
            samples = screen(timer.sample, self.session, task.policy, task.best_us)
        except DeviceFaultError as error:
            return TimingResult(verdict, failure=DeviceFailure(error.fault, str(error), error.fatal))
        except (MachineError, InputError) as error:  # no memory for its workspaces, or no tensor map
            return TimingResult(verdict, failure=DeviceFailure(Fault.REFUSED, str(error)))
        finally:
            self._release()
        fell = None if samples else DeviceFailure(Fault.UNTIMED, "every sample was throttled, or shared the device")
        return TimingResult(verdict, samples, fell)

    def _race(self, heat: RaceRequest) -> RaceResult:
        """Race; disturbed rounds are omitted as a whole, because differences are only meaningful within a round."""
        at = 0
        try:
            timers, floor_us = [], self._floor_us(heat.policy)
            for at, code in enumerate(heat.codes):  # noqa: B007  # identifies the contender that fails
                timers.append(self.timer(code, heat.policy))
            rng, started = np.random.default_rng(heat.seed), time.monotonic()
            rounds: list[tuple[Sample, ...]] = []
            for turn in range(heat.rounds):
                if turn and time.monotonic() - started > heat.limit_s:
                    break
                samples = {}
                for at in map(int, rng.permutation(len(timers))):
                    if heat.own_clock:
                        timers[at].own_clock()
                    samples[at] = timers[at].sample()
                if not any(disturbed(sample.state, self.session()) for sample in samples.values()):
                    rounds.append(tuple(samples[i] for i in range(len(timers))))
        except DeviceFaultError as error:
            return RaceResult(failure=DeviceFailure(error.fault, str(error), error.fatal, at))
        except (MachineError, InputError) as error:
            return RaceResult(failure=DeviceFailure(Fault.REFUSED, str(error), culprit=at))
        finally:
            self._release()
        return RaceResult(tuple(rounds), capped=any(timer.capped for timer in timers), floor_us=floor_us)

    def _floor_us(self, policy: MeasurementPolicy) -> float:
        """Return the launch overhead, measured once per launch mode; 0 (unknown) if the driver refuses it."""
        if policy.launch not in self._floors_us:
            try:
                self._floors_us[policy.launch] = self.device.floor_us(policy)
            except DeviceFaultError as error:
                if error.fatal:
                    raise
                return 0.0
        return self._floors_us[policy.launch]

    def _judge(self, task: TimingRequest) -> DeviceCheck:
        judge = DeviceCheck(self.device, task.code, task.policy.limit_s)
        instance = operators.instance(task.code.instance)
        for case in cases(instance.operator, task.code.instance.problem, every=self.device.thorough):
            if not operators.serves(instance.implementation, case.problem):
                continue
            judge.run(case, twice=self.device.thorough)
            if not judge.right:
                return judge
        arena = self._prepared(task.code)
        if arena:
            outputs = judge.compare_timed(arena, self._timed.agreed)
            if judge.right and not self._timed.agreed:
                self._timed.agreed = outputs
        return judge

    def timer(self, code: Code, policy: MeasurementPolicy) -> Timer:
        """Return a config on the timed problem, loaded and warmed up. Raises DeviceFaultError."""
        instance = operators.instance(code.instance)
        plan = instance.plan()
        arena = self._prepared(code)
        call = arena.call(plan) if arena else Call(())
        return Timer(self.device, self.device.load(code, plan), call, policy, self._states)

    def _release(self) -> None:
        if self._timed.arena:
            self._timed.arena.release()

    def session(self) -> State:
        """The usual state of the device during this process."""
        return usual(self._states)

    def _prepared(self, code: Code) -> Arena | None:
        """Return the timed problem in device memory, replacing the previous problem."""
        key = code.instance.operator + encode(code.instance.problem)
        if self.device.executes and key != self._timed.key:
            if self._timed.arena:
                self._timed.arena.close()
            instance = operators.instance(code.instance)
            arena = Arena(self.device, instance.operator, instance.problem, self._draw(code))
            self._timed = _Timed(key, arena, {})
        return self._timed.arena


def _drawn(code: Code) -> Mapping[str, Any]:
    instance = operators.instance(code.instance)
    operator = instance.operator
    return operator.inputs(instance.problem, np.random.default_rng(0), operator.input_kinds[0])
