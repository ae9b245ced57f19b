"""The process that times all contenders: our kernel, related kernels, a plain copy and peers, on the same inputs."""

import faulthandler
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tuner import operators
from tuner.base.pool import Lost
from tuner.bench import peers
from tuner.bench.comparison import Comparison, Row
from tuner.bench.events import Teller
from tuner.bench.peers import AbsentError, Peer
from tuner.errors import MachineError
from tuner.evaluate.measure.device import SIMULATED, Code, Device, DeviceFaultError
from tuner.evaluate.measure.device_check import Case, cases
from tuner.evaluate.measure.gpu_device import GpuDevice
from tuner.evaluate.measure.messages import TimingRequest, TimingResult
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import State, typical
from tuner.evaluate.measure.worker import DeviceOpener, DeviceServer
from tuner.spec.contract import line_of
from tuner.spec.parameters import scalars
from tuner.spec.problem import from_fields

OURS = "tuner"
COPY = "plain copy"
_WARM_UPS = 3
_RACE_S = 5.0  # time reserved for the race while peers are prepared

Sampler = Callable[[], float]  # returns the time of a run in microseconds


@dataclass(frozen=True)
class Meeting:
    """The contenders, inputs and time limits of a comparison. `policies` are the launch modes, ours first."""

    code: Code
    context: tuple[Code, ...]  # our kernels for other problems on the same tensors
    opener: DeviceOpener
    policies: tuple[MeasurementPolicy, ...]
    kind: str  # kind of inputs
    seed: int
    journal: Path
    seconds: float = inf  # after this time no peer is prepared and no round starts
    lost: Mapping[str, str] = field(default_factory=dict)  # peers that crashed the process, with the reason
    ready: tuple[str, ...] = ()  # peers that were prepared in an earlier try
    guests: tuple[Peer, ...] = ()  # in addition to the operator's peers


def meet(meeting: Meeting) -> Lost | None:
    """Run the comparison; its events are in the journal. Return Lost if a contender crashed the device. Raises
    MachineError.

    A peer that is not prepared within its time limit ends this process, because it cannot be stopped otherwise.
    """
    with ExitStack() as held:
        try:
            _Field(meeting, held).race()
        except DeviceFaultError as error:
            return Lost(f"{error.fault.value}: {error}")
    _give_back()
    return None


def warm(code: Code, kind: str) -> Iterator[tuple[str, str]]:
    """Yield (peer, error) for each peer that was run on an edge case and on the problem; the error is empty on success.

    The results of its compiler stay in the compiler's cache.
    """
    inputs = _Inputs(code, kind)
    for peer in peers.of(code.instance.operator):
        try:
            judged(peer, inputs.cases())
            peer.prepare(inputs.problem, inputs.tensors, inputs.scalars)()
            yield peer.name, ""
        except Exception as error:
            yield peer.name, _reason(error)


def late(log: str) -> bool:
    """Return whether a process ended because a peer was not prepared in time, judged by its output."""
    return "Timeout (" in log  # from faulthandler


@cache
def _device(opener: DeviceOpener) -> Device:
    """Return the device, one per process for all of its meetings."""
    return opener.open()


@cache
def _copy(opener: DeviceOpener, nbytes: int) -> Any:
    return _device(opener).ready_copy(nbytes)


def _give_back() -> None:
    """Release the memory that a framework caches on the device, because the next meeting may have other sizes."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


class _DeviceServer(DeviceServer):
    """A server whose memory is released after a meeting."""

    def close(self) -> None:
        if self._timed.arena:
            self._timed.arena.close()


class _Field:
    """The valid contenders of one meeting, each with its sampler."""

    def __init__(self, meeting: Meeting, held: ExitStack) -> None:
        self._meeting, self._held, self._device = meeting, held, _device(meeting.opener)
        self._began = time.monotonic()
        self._ends = self._began + meeting.seconds
        self._facts = self._device.facts()
        self._policies = tuple(dict.fromkeys(policy.on(self._facts) for policy in meeting.policies))
        self._inputs = _Inputs(meeting.code, meeting.kind)
        self._copy = _copy(meeting.opener, self._inputs.nbytes)
        self._samplers: dict[tuple[str, str], Sampler] = {}
        self._teller = Teller(meeting.journal)
        self._teller.meets(self._empty())

    def race(self) -> None:
        """Enter all contenders, and time each of them once per round, in random order."""
        self._enter_all()
        rng, samplers = np.random.default_rng(self._meeting.seed), list(self._samplers.values())
        for turn in range(self._policies[0].rounds):
            if turn and time.monotonic() > self._ends:
                return
            times, states = [0.0] * len(samplers), [State()] * len(samplers)
            for i in map(int, rng.permutation(len(samplers))):
                times[i] = samplers[i]()
                states[i] = self._device.state()
            self._teller.round(times, states)

    def _empty(self) -> Comparison:
        code, simulated = self._meeting.code, " simulated" * (self._facts["model"] == SIMULATED)
        return Comparison(
            code.instance.operator,
            code.instance.problem,
            self._meeting.kind,
            code.instance.config,
            code.instance.implementation,
            self._facts,
            self._policies[0].name + simulated,
            (),
        )

    def _enter_all(self) -> None:
        code = self._meeting.code
        if len(self._policies) < len(self._meeting.policies):
            self._out(Row(OURS, "absent", f"no CUDA graph here: {self._facts['no_graph']}", "graph"))
        wrong = self._enter_kernel(OURS, code)
        if wrong:
            raise MachineError(f"our own {code.instance.name} fails here: {wrong}")
        self._enter(Row(COPY, "roof", self._inputs.moved), self._sampler(self._copy, self._policies[0]))
        for contender in self._meeting.context:
            self._enter_kernel(f"{OURS} {contender.instance.operator}", contender)
        for peer in (*peers.of(code.instance.operator), *self._meeting.guests):
            self._enter_peer(peer)

    def _enter(self, row: Row, sampler: Sampler) -> None:
        self._samplers[row.name, row.launch] = sampler
        self._teller.enters(row)

    def _out(self, row: Row) -> None:
        self._teller.stays_out(row)

    def _enter_kernel(self, name: str, code: Code) -> str:
        """Enter one of our kernels in each launch mode if it is correct; return the error otherwise."""
        stand = _DeviceServer(self._device, lambda _: self._inputs.arrays)
        self._held.callback(stand.close)
        judged = stand.do(TimingRequest(code, self._policies[0], timed=False))
        assert isinstance(judged, TimingResult), "a task returns this type"
        fell = judged.failure
        if fell is not None and fell.fatal:
            raise MachineError(f"our own {code.instance.name} took the device down: {fell.reason}")
        if fell is not None:
            self._out(Row(name, "wrong", fell.reason))
            return fell.reason
        for policy in self._policies:
            timer = stand.timer(code, policy)
            self._enter(Row(name, "ok", "", policy.launch), lambda timer=timer: timer.sample().time_us)  # type: ignore[misc]
        return ""

    def _enter_peer(self, peer: Peer) -> None:
        left_s = self._left_s(peer)
        if peer.name in self._meeting.lost:
            self._out(Row(peer.name, "lost", self._meeting.lost[peer.name]))
            return
        if left_s <= 0:
            self._out(Row(peer.name, "untimed", "the time ran out before it was prepared"))
            return
        self._teller.begins(peer.name)
        faulthandler.dump_traceback_later(min(peer.patience_s, left_s), exit=True)  # ends the process wherever it hangs
        try:
            for launch, sampler in self._peer_samplers(peer):
                self._enter(Row(peer.name, "ok", peer.note, launch), sampler)
        except AbsentError as error:
            self._out(Row(peer.name, "absent", str(error)))
        except WrongError as error:
            self._out(Row(peer.name, "wrong", str(error)))
        except Exception as error:  # a peer may fail in any way, which must not affect the others
            reached = "graph" if (peer.name, "eager") in self._samplers else "eager"
            self._out(Row(peer.name, "failed", _reason(error) + self._inputs.line_of(error), reached))
        self._device.times_us(self._copy, 1, self._policies[0])  # raises if the peer crashed the device …
        faulthandler.cancel_dump_traceback_later()
        self._teller.ends(peer.name)  # … in which case it has no end event

    def _left_s(self, peer: Peer) -> float:
        """Return the time that a peer may take; if it needs more, the others have to be prepared and timed again."""
        now = time.monotonic()
        again = 0.0 if peer.name in self._meeting.ready else now - self._began + _RACE_S
        return self._ends - now - again

    def _peer_samplers(self, peer: Peer) -> Iterator[tuple[str, Sampler]]:
        """Yield (launch mode, sampler) of a correct peer."""
        device = self._device
        if not isinstance(device, GpuDevice):
            yield from self._rehearsed(peer)
            return
        run = peer.prepare(self._inputs.problem, self._inputs.tensors, self._inputs.scalars)
        judged(peer, self._inputs.cases())
        run()
        for policy in self._policies:
            ready = run if policy.launch == "eager" else peers.captured(run)
            yield policy.launch, self._sampler(ready, policy)

    def _rehearsed(self, peer: Peer) -> Iterator[tuple[str, Sampler]]:
        if not isinstance(peer, peers.Rehearsed):
            raise AbsentError("peers need a GPU")
        peer.get_ready()
        ready = _copy(self._meeting.opener, int(peer.slower * self._inputs.nbytes))
        for policy in self._policies:
            yield policy.launch, self._sampler(ready, policy)

    def _sampler(self, ready: Any, policy: MeasurementPolicy) -> Sampler:
        """Return a sampler that averages over the launches of a sample."""

        def times(launches: int) -> float:
            return typical(self._device.times_us(ready, launches, policy))

        launches = policy.launches(median(times(1) for _ in range(_WARM_UPS)))
        return lambda: times(launches)


class _Inputs:
    """The data shared by all contenders: the timed tensors, and the edge cases for checking."""

    def __init__(self, code: Code, kind: str) -> None:
        self._operator, self._code, self._kind = operators.load(code.instance.operator), code, kind
        self.problem = from_fields(self._operator.problem, code.instance.problem)
        self.nbytes = int(self._operator.cost(self.problem).bytes)
        self.moved = f"{self.nbytes / 1e6:.1f} MB, the minimum traffic: half read, half written"

    def line_of(self, error: Exception) -> str:
        """Return where in the operator's folder an error occurred."""
        return line_of(error, [self._operator.folder])

    def cases(self) -> Sequence[Case]:
        return cases(self._operator, self._code.instance.problem, every=False)

    @cached_property
    def arrays(self) -> Mapping[str, Any]:
        return self._operator.inputs(self.problem, np.random.default_rng(0), self._kind)

    @cached_property
    def tensors(self) -> Mapping[str, Any]:
        """The inputs as torch tensors. Raises AbsentError without torch."""
        peers.gpu_torch()  # before drawing, which takes seconds
        return peers.to_torch(self.arrays)

    @property
    def scalars(self) -> Mapping[str, float]:
        return scalars(self._operator, self.problem, self.arrays)


class WrongError(Exception):
    """A peer's output differs from the float64 reference."""


def judged(peer: Peer, edge_cases: Sequence[Case], device: str = "cuda") -> str:
    """Return the largest case that a peer accepts. Raises WrongError if its output is wrong.

    Raises AbsentError, with the reason for the smallest case, if it accepts none, because its correctness is then
    unknown.
    """
    refusal = "there is none"
    for case in sorted(edge_cases, key=_elements, reverse=True):
        try:
            outputs = peer.prepare(case.problem, peers.to_torch(case.arrays, device), case.scalars)()
        except Exception as error:  # the peer may not support this shape
            refusal = _reason(error)
            continue
        names = case.expected.exact.keys()
        if not outputs or outputs.keys() - names:
            raise WrongError(
                f"it returns {', '.join(outputs) or 'nothing'}, but only {', '.join(names)} can be checked"
            )
        for name, tensor in outputs.items():
            off = case.expected.error(name, peers.to_numpy(tensor))
            if not off.ok:
                raise WrongError(f"{case.name}: {off.reason}")
        return case.name
    raise AbsentError(f"it accepts none of the edge cases, so its correctness is unknown: {refusal}")


def _reason(error: Exception) -> str:
    """Return the first line of a foreign error message."""
    message = str(error).partition("\n")[0]
    return message if isinstance(error, AbsentError) else f"{type(error).__name__}: {message}"


def _elements(case: Case) -> int:
    return sum(np.size(exact) for exact in case.expected.exact.values())
