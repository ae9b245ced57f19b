"""The process in which contenders meet: ours, related kernels, a plain copy and peers, on the same inputs, in turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tuner import operators
from tuner.base.pool import Lost
from tuner.bench import peers
from tuner.bench.comparison import Comparison, Row
from tuner.bench.peers import AbsentError, Peer
from tuner.errors import MachineError
from tuner.evaluate.measure.device import SIMULATED, Code, DeviceFaultError
from tuner.evaluate.measure.gpu_device import GpuDevice
from tuner.evaluate.measure.judge import Case, cases
from tuner.evaluate.measure.ledger import Ledger
from tuner.evaluate.measure.messages import Task, Timed
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import State, Times, disturbed, estimate, in_units, interval, typical, usual
from tuner.evaluate.measure.worker import DeviceOpener, Stand
from tuner.spec.contract import line_of
from tuner.spec.parameters import scalars
from tuner.spec.problem import from_fields

OURS = "tuner"
COPY = "plain copy"
_WARM_UPS = 3

Sampler = Callable[[], float]  # the time of a run, in microseconds


@dataclass(frozen=True)
class Meeting:
    """Who meets on what. `policies` are the ways to launch, those of ours first; `journal` names who took it down."""

    code: Code
    context: tuple[Code, ...]  # kernels of ours for other problems on the same tensors
    place: DeviceOpener
    policies: tuple[MeasurementPolicy, ...]
    kind: str  # of inputs
    seed: int
    journal: Path


def meet(meeting: Meeting) -> Comparison | Lost:
    """The comparison; Lost where a contender took the device down: the journal says who. Raises MachineError."""
    try:
        return _Field(meeting).comparison()
    except DeviceFaultError as error:
        return Lost(f"{error.fault.value}: {error}")


class _Field:
    """The contenders of one meeting that came through, each with what samples it, and a row for each of the others."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting, self._device = meeting, meeting.place.open()
        self._facts = self._device.facts()
        self._policies = tuple(dict.fromkeys(policy.on(self._facts) for policy in meeting.policies))
        self._ledger = Ledger(meeting.journal, most_deaths=1)
        self._inputs = _Inputs(meeting.code, meeting.kind)
        self._copy = self._device.ready_copy(self._inputs.nbytes)
        self._samplers: dict[tuple[str, str], Sampler] = {}
        self._left_out: list[Row] = []
        if len(self._policies) < len(meeting.policies):
            self._left_out.append(Row(OURS, "absent", f"no CUDA graph here: {self._facts['no_graph']}", "graph"))

    def comparison(self) -> Comparison:
        code, policy = self._meeting.code, self._policies[0]
        self._enter_kernel(OURS, code)
        if not self._samplers:
            raise MachineError(f"our own {code.instance.name} fails here: {self._left_out[-1].note}")
        self._samplers[COPY, "eager"] = self._sampler(self._copy, policy)
        for each in self._meeting.context:
            self._enter_kernel(f"{OURS} {each.instance.operator}", each)
        for peer in peers.of(code.instance.operator):
            self._enter_peer(peer)
        times = self._race(policy.rounds)
        rows = (*self._placed(times), *self._left_out)
        return Comparison(
            code.instance.operator,
            code.instance.problem,
            self._meeting.kind,
            code.instance.config,
            code.instance.implementation,
            self._facts,
            policy.name + (" simulated" if self._facts["model"] == SIMULATED else ""),
            rows,
        )

    def _enter_kernel(self, name: str, code: Code) -> None:
        """One of ours, once it is right, in each way to launch it."""
        stand = Stand(self._device, lambda _: self._inputs.arrays)
        judged = stand.do(Task(code, self._policies[0], timed=False))
        assert isinstance(judged, Timed), "that is the answer to a task"
        fell = judged.fell
        if fell is not None and fell.fatal:
            raise MachineError(f"our own {code.instance.name} took the device down: {fell.reason}")
        if fell is not None:
            self._left_out.append(Row(name, "wrong", fell.reason))
            return
        for policy in self._policies:
            timer = stand.timer(code, policy)
            self._samplers[name, policy.launch] = lambda timer=timer: timer.sample().time_us  # type: ignore[misc]

    def _enter_peer(self, peer: Peer) -> None:
        if self._ledger.banned(peer.name):
            self._left_out.append(Row(peer.name, "lost", "it took the process down, or too long"))
            return
        self._ledger.began(peer.name)
        try:
            for launch, sampler in self._peer_samplers(peer):
                self._samplers[peer.name, launch] = sampler
        except AbsentError as error:
            self._left_out.append(Row(peer.name, "absent", str(error)))
        except WrongError as error:
            self._left_out.append(Row(peer.name, "wrong", str(error)))
        except Exception as error:  # a peer may fail in any way, and that is no reason to lose the others
            reached = "graph" if (peer.name, "eager") in self._samplers else "eager"
            reason = f"{type(error).__name__}: {error}".partition("\n")[0] + self._inputs.line_of(error)
            self._left_out.append(Row(peer.name, "failed", reason, reached))
        self._device.times_us(self._copy, 1, self._policies[0])  # raises where the peer took the device down …
        self._ledger.ended(peer.name)  # … and then it has not ended

    def _peer_samplers(self, peer: Peer) -> Iterator[tuple[str, Sampler]]:
        """(way to launch, sampler) of a peer that is right."""
        device = self._device
        if not isinstance(device, GpuDevice):
            raise AbsentError("peers need a GPU")
        run = peer.prepare(self._inputs.problem, self._inputs.tensors, self._inputs.scalars)
        if not judged(peer, self._inputs.cases()):
            raise AbsentError("it takes none of the edge cases, so nothing says that it is right")
        run()
        for policy in self._policies:
            ready = run if policy.launch == "eager" else peers.captured(run)
            yield policy.launch, self._sampler(ready, policy)

    def _race(self, rounds: int) -> Times:
        """[rounds, contenders] in microseconds: everybody once a round, in random order.

        Rounds that a throttle or another process disturbed are left out, unless that leaves none.
        """
        rng, samplers = np.random.default_rng(self._meeting.seed), list(self._samplers.values())
        times = np.empty((rounds, len(samplers)))
        states: list[list[State]] = [[] for _ in range(rounds)]
        for n in range(rounds):
            for i in rng.permutation(len(samplers)):
                times[n, i] = samplers[i]()
                states[n].append(self._device.state())
        session = usual([state for each in states for state in each])
        calm = np.array([not any(disturbed(state, session) for state in each) for each in states])
        return times[calm] if calm.any() else times

    def _placed(self, times: Times) -> list[Row]:
        """`times` is [rounds, contenders] in microseconds; ours is first."""
        logs = np.log(times)
        rows = []
        for i, (name, launch) in enumerate(self._samplers):
            ratio = in_units(interval(logs[:, i] - logs[:, 0]))
            state, note = ("roof", self._inputs.moved) if name == COPY else ("ok", "")
            rows.append(Row(name, state, note, launch, estimate(times[:, i].tolist()), ratio))
        return rows

    def _sampler(self, ready: Any, policy: MeasurementPolicy) -> Sampler:
        """What as many runs as make a sample have in common."""

        def times(launches: int) -> float:
            return typical(self._device.times_us(ready, launches, policy))

        launches = policy.launches(median(times(1) for _ in range(_WARM_UPS)))
        return lambda: times(launches)


class _Inputs:
    """What all in a meeting share: the tensors that are timed, and edge cases that say who is right."""

    def __init__(self, code: Code, kind: str) -> None:
        self._operator, self._code, self._kind = operators.load(code.instance.operator), code, kind
        self.problem = from_fields(self._operator.problem, code.instance.problem)
        self.nbytes = int(self._operator.cost(self.problem).bytes)
        self.moved = f"{self.nbytes / 1e6:.1f} MB, the least to be moved: half read, half written"

    def line_of(self, error: Exception) -> str:
        """Where in the operator's folder an error came from."""
        return line_of(error, [self._operator.folder])

    def cases(self) -> Sequence[Case]:
        return cases(self._operator, self._code.instance.problem, every=False)

    @cached_property
    def arrays(self) -> Mapping[str, Any]:
        return self._operator.inputs(self.problem, np.random.default_rng(0), self._kind)

    @cached_property
    def tensors(self) -> Mapping[str, Any]:
        """Raises AbsentError without torch."""
        peers.gpu_torch()  # before seconds go into drawing
        return peers.to_torch(self.arrays)

    @property
    def scalars(self) -> Mapping[str, float]:
        return scalars(self._operator, self.problem, self.arrays)


class WrongError(Exception):
    """A peer's output is not what float64 says."""


def judged(peer: Peer, edge_cases: Sequence[Case], device: str = "cuda") -> str:
    """The largest case that a peer takes; empty for none. Raises WrongError where it comes out wrong."""
    for case in sorted(edge_cases, key=_elements, reverse=True):
        try:
            outputs = peer.prepare(case.problem, peers.to_torch(case.arrays, device), case.scalars)()
        except Exception:  # not this shape; perhaps another, and it must take the timed one in any case
            continue
        known = case.expected.exact.keys()
        if not outputs or outputs.keys() - known:
            raise WrongError(f"it returns {', '.join(outputs) or 'nothing'}, and {', '.join(known)} can be judged")
        for name, tensor in outputs.items():
            error = case.expected.error(name, peers.to_numpy(tensor))
            if not error.ok:
                raise WrongError(f"{case.name}: {error.reason}")
        return case.name
    return ""


def _elements(case: Case) -> int:
    return sum(np.size(exact) for exact in case.expected.exact.values())
