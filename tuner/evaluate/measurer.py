"""The measuring evaluator: configs are compiled, checked and timed on a device, and finalists race."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Any

import numpy as np

from tuner import operators
from tuner.arch import GPU
from tuner.backends.gpu import driver_name
from tuner.base.canonical_json import encode
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.compiler.verdict_inputs import checked_code
from tuner.errors import UsageError
from tuner.evaluate.compilation import Compilation
from tuner.evaluate.evaluator import Finalists, RaceOutcome
from tuner.evaluate.measure.crash_ledger import DeathLedger, Ledger
from tuner.evaluate.measure.device import SIMULATED, Code, Fault
from tuner.evaluate.measure.drift_reference import DriftMonitor
from tuner.evaluate.measure.messages import DeviceFailure, RaceRequest, RaceResult, TimingRequest, TimingResult
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.race_timing import Rules, Standing, decide
from tuner.evaluate.measure.samples import Estimate, Sample, State, estimate, together
from tuner.evaluate.measure.worker import Worker
from tuner.evaluate.prefetch import first_item_first, prefetched
from tuner.results.attempt import Attempt, Evidence, Failed, Identity, Measurement, Stage
from tuner.results.final_race import Lap
from tuner.results.proof import CheckedCode, Proof
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.problem import to_fields

_REPEATS = 2  # repetitions after a drift, before the new device state is accepted
_LEAST_ROUNDS = 3  # minimum of rounds at own clocks; with fewer, the race at a shared clock decides
_OWN_CLOCK_S = 10.0  # time for starting rounds at own clocks; each takes a tenth of a second per contender
# × the best predicted cost: configs further behind are skipped once the session's times correlate in rank with the
# predictions over this many configs of an implementation.
_HOPELESS, _CONFIRMED_BY, _CONFIRMED = 20.0, 8, 0.5
# Faults caused by a kernel; other faults, such as missing memory, are not its fault.
_KERNEL_FAULTS = (Fault.WRONG, Fault.UNSTEADY, Fault.ILLEGAL, Fault.TIMEOUT, Fault.CRASH)

_BANNED = TimingResult(
    None,
    failure=DeviceFailure(
        Fault.CRASH, "it crashed the device process before; only `tuner search --retry` tries it again"
    ),
)


@dataclass(frozen=True)
class _Race:
    """A completed race, by position among the finalists."""

    entrants: tuple[int, ...]
    result: RaceResult
    standing: Standing


@dataclass(frozen=True)
class Setup:
    """The tools of a Measurer. The worker and the ledger are shared by several problems."""

    worker: Worker
    policy: MeasurementPolicy = field(default_factory=MeasurementPolicy)
    ledger: DeathLedger = field(default_factory=Ledger)


class Measurer:
    """Times compiled configs on the device while the next ones compile; see `Evaluator`.

    A measured config keeps its prediction, so that the accuracy of predictions can be estimated. `best_us` is the time
    to beat at the current device speed: the best config of earlier sessions is timed again before any new one.
    """

    evidence = Evidence.MEASURED
    device: str | None

    def __init__(
        self,
        operator: Operator[Any],
        problem: Any,
        gpu: GPU,
        compiler: Compiler,
        setup: Setup,
    ) -> None:
        """Raise UsageError if the device is not the `gpu` to measure for."""
        self.operator, self._problem, self.gpu = operator, problem, gpu
        facts = setup.worker.describe().facts
        self.setup = replace(setup, policy=setup.policy.on(facts))
        self.best_us = inf
        self.drift = self.setup.policy.drift
        self.drift_monitor = DriftMonitor(setup.worker, self.setup.policy)
        self._current: set[object] = set()  # machine codes timed at the current device speed
        self._earlier: Instance | None = None
        self._plain: dict[str, TimingRequest] | None = None  # by key: configs that a new process runs first
        self._started = -1  # worker restarts when these last ran
        self._best_cost = inf  # predicted cost of the config with `best_us`
        self._pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)  # (predicted, measured)
        self._verdicts: dict[Identity, Verdict] = {}
        self._twins: dict[object, tuple[str, TimingResult]] = {}  # by machine code: its first config
        self._model, self.device = str(facts["model"]), str(facts.get("uuid", ""))
        # Results of a simulated device must never be mistaken for measurements.
        self._driver = SIMULATED if self._model == SIMULATED else driver_name(int(facts["driver"]))
        simulated = " simulated" if self._model == SIMULATED else ""
        self.policy = f"{self.setup.policy.name} inputs {_inputs_digest(operator, problem)}{simulated}"
        self._compilation = Compilation(gpu, compiler, self.policy)
        self.identity, self.prior = self._compilation.identity, self._compilation.prior
        self.compiled_costs = self._compilation.compiled_costs
        if gpu.arch.name != facts["arch"]:
            raise UsageError(f"cannot measure for {gpu.name} on this {facts['gpu']}: give --gpu {facts['gpu']}")

    def resume(self, best: Instance) -> None:
        self._earlier = best

    def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        started, line = time.perf_counter(), self._line(batch)
        self._prepare_plain()  # needs the compilers before the batch uses them
        sources = [render(instance) for _, instance in line]
        with prefetched(self._compilation.compile(sources)) as outcomes:
            self._run_plain()
            for i, outcome in first_item_first(outcomes) if self.best_us == inf else outcomes:
                position, instance = line[i]
                attempt = self._compilation.attempt(instance, sources[i], outcome)
                if attempt.failure is None and isinstance(outcome, Cubin):
                    attempt = self._timed(instance, attempt, outcome)
                if position is not None:
                    yield position, replace(attempt, seconds=time.perf_counter() - started)

    def check(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        """Return the verdicts of this session; configs measured in an earlier one are checked again."""
        self._run_plain()
        identities = [self.identity(instance) for instance in batch]
        unknown = [i for i, identity in enumerate(identities) if identity not in self._verdicts]
        for i, code in zip(unknown, self._codes([batch[i] for i in unknown]), strict=True):
            timed = self._on_device(identities[i], TimingRequest(code, self.setup.policy, timed=False))
            self._verdicts[identities[i]] = _verdict(timed, self._model)
        yield from enumerate(self._verdicts[identity] for identity in identities)

    def checked_code(self, instance: Instance) -> CheckedCode:
        """Return the code and machine for which the device's verdict on a config is valid."""
        return checked_code(instance, self.gpu, self._driver)

    def prove(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Proof | Failed]]:
        """Yield (position in `batch`, the device's proof, or why there is none) in order of completion."""
        self._prepare_plain()  # needs the compilers before the batch uses them
        with prefetched(self._compilation.compile(list(map(render, batch)))) as outcomes:
            for position, outcome in outcomes:
                if isinstance(outcome, Failed):
                    yield position, outcome
                    continue
                instance = batch[position]
                identity, task = self.identity(instance), TimingRequest(_code(instance, outcome), self.setup.policy)
                timed = self._on_device(identity, replace(task, timed=False))
                if timed.failure and timed.failure.fault not in _KERNEL_FAULTS:
                    yield position, Failed(timed.failure.fault.stage, timed.failure.reason)
                    continue
                verdict = _verdict(timed, self._model)
                yield position, Proof(self.checked_code(instance), identity.problem, verdict)

    def race(
        self, contenders: Sequence[Instance], seed: int = 0, *, own_clock: bool = False
    ) -> tuple[list[int], RaceResult]:
        """Return (positions of the finished contenders, times of the rounds); empty if the device fails for all of
        them.
        """
        codes, left, policy = self._codes(contenders), list(range(len(contenders))), self.setup.policy
        while left:
            heat = RaceRequest(tuple(codes[i] for i in left), policy, policy.rounds, seed)
            if own_clock:
                heat = replace(heat, rounds=policy.own_clock_rounds, limit_s=_OWN_CLOCK_S, own_clock=True)
            raced = self.setup.worker.race(heat)
            if raced.failure is None:
                return left, raced
            left.pop(raced.failure.culprit)
        return [], RaceResult()

    def settle(self, finalists: Finalists, seed: int) -> RaceOutcome | None:
        """Race the finalists in interleaved rounds, at one shared clock.

        If one of them draws so much power that it would lower its own clock, those near the best and the default race
        again, each at its own clock, as in an application that runs only this kernel.
        """
        race = self._run_race(finalists, tuple(range(len(finalists.configs))), seed)
        if race is None:
            return None
        near = [
            position
            for position, contender in zip(race.entrants, race.standing.contenders, strict=True)
            if contender.ratio.low <= 1 + self.drift or position == finalists.default
        ]
        if race.result.capped and len(near) > 1:
            again = self._run_race(finalists, near, seed, own_clock=True)
            if again and len(again.result.rounds) >= _LEAST_ROUNDS:
                return _race_outcome(again, self.drift_monitor.voided, own_clock=True)
        return _race_outcome(race, self.drift_monitor.voided)

    def _run_race(
        self, finalists: Finalists, positions: Sequence[int], seed: int, *, own_clock: bool = False
    ) -> "_Race | None":
        """Return None if no finalist finished."""
        survivors, result = self.race([finalists.configs[i] for i in positions], seed, own_clock=own_clock)
        if not result.rounds:
            return None
        entrants = [positions[i] for i in survivors]
        default = entrants.index(finalists.default) if finalists.default in entrants else None
        rules = Rules(tuple(finalists.keys[i] for i in entrants), default, self.setup.policy.tie, result.floor_us)
        return _Race(tuple(entrants), result, decide(result.times_us, rules, seed))

    def is_current(self, attempt: Attempt) -> bool:
        """Return whether its time was measured in this session at the current device speed."""
        return _twin(attempt) in self._current

    def _run_plain(self) -> None:
        """Make a new process run the plain kernel before all others.

        The timed problem is too large for a float64 reference, so the first kernel's outputs are used instead.
        """
        if self._started == self.setup.worker.restarts:
            return
        self._started = self.setup.worker.restarts
        for key, task in self._prepare_plain().items():
            if not self.setup.ledger.banned(key):
                self._once(key, task)

    def _prepare_plain(self) -> dict[str, TimingRequest]:
        """Return the cached requests, because the compilers are busy during a batch."""
        if self._plain is None:
            self._plain = dict(self._plain_tasks())
        return self._plain

    def _plain_tasks(self) -> Iterator[tuple[str, TimingRequest]]:
        for implementation in operators.implementations(self.operator.name):
            if implementation.oracle and implementation.refusal(self._problem, self.gpu.arch) is None:
                instance = Instance.default(self.operator, implementation, self._problem, self.gpu.arch)
                (code,) = self._codes([instance])
                yield _key(self.identity(instance)), TimingRequest(code, self.setup.policy, timed=False)

    def _line(self, batch: Sequence[Instance]) -> list[tuple[int | None, Instance]]:
        """Return a batch with its positions.

        Without a time to beat, promising configs come first, so that slow ones are stopped early. The best config of
        earlier sessions has no position, since its row exists already.
        """
        line: list[tuple[int | None, Instance]] = list(enumerate(batch))
        if self.best_us == inf and batch:
            line.sort(key=lambda entry: self._turn(entry[1]))
            if self._earlier:
                line.insert(0, (None, self._earlier))
        return line

    def _timed(self, instance: Instance, attempt: Attempt, cubin: Cubin) -> Attempt:
        if self._confirmed(instance) and attempt.prediction and attempt.prediction.cost > _HOPELESS * self._best_cost:
            slower = f"predicted to be over {_HOPELESS:g} × slower than the best measured config"
            return replace(attempt, failure=Failed(Stage.TIME, f"not timed: {slower}"))
        twin = _twin(attempt)
        duplicate = twin in self._twins
        if not duplicate:
            task = TimingRequest(_code(instance, cubin), self.setup.policy, self.best_us)
            self._twins[twin] = encode(attempt.config), self._steady(attempt.identity, task)
            self._current.add(twin)
        spelled, timed = self._twins[twin]
        if timed.verdict is not None:
            self._verdicts[attempt.identity] = timed.verdict
        if timed.failure is not None:
            as_before = f"same machine code as {spelled}: " if duplicate else ""
            return replace(attempt, failure=Failed(timed.failure.fault.stage, as_before + timed.failure.reason))
        measurement = replace(_measurement(timed.samples), duplicate_of=spelled if duplicate else "")
        # A duplicate's samples were measured at an earlier speed.
        if measurement.time_us < self.best_us and not duplicate:
            self.best_us = measurement.time_us
            self._best_cost = attempt.prediction.cost if attempt.prediction else inf
        if attempt.prediction and not duplicate:
            self._pairs[instance.name].append((attempt.prediction.cost, measurement.time_us))
        return replace(attempt, measurement=measurement)

    def _confirmed(self, instance: Instance) -> bool:
        """Return whether measured times confirm the predictions of an implementation."""
        predicted, measured = np.array(self._pairs[instance.name]).reshape(-1, 2).T
        if len(predicted) < _CONFIRMED_BY or min(np.ptp(predicted), np.ptp(measured)) == 0:
            return False
        return float(np.corrcoef(_ranks(predicted), _ranks(measured))[0, 1]) >= _CONFIRMED

    def _turn(self, instance: Instance) -> tuple[bool, float]:
        """Return a sort key for the case that nothing was timed: the default with the best prediction comes first."""
        default = instance.implementation.default(instance.problem, self.gpu.arch)
        expected = self.prior(instance)
        return instance.config != default, inf if np.isnan(expected) else expected

    def _steady(self, identity: Identity, task: TimingRequest) -> TimingResult:
        """Draw samples that the drift monitor confirms, repeating those that a drift invalidates."""
        before_us, timed = self.drift_monitor.level_us, self._on_device(identity, task)
        for _ in range(_REPEATS):
            if not timed.samples or self.drift_monitor.confirms(task.code, timed.samples):
                break
            again = self._on_device(identity, replace(task, judged=False))
            timed = replace(again, verdict=timed.verdict)
        if before_us and self.drift_monitor.level_us != before_us:
            self.best_us *= self.drift_monitor.level_us / before_us
            self._current.clear()
        return timed

    def _on_device(self, identity: Identity, task: TimingRequest) -> TimingResult:
        """Check and time. A process may crash by chance, so the config is tried once more, but not again after that."""
        key = _key(identity)
        timed = _BANNED
        while self._allowed(key):
            timed = self._once(key, task)
            if timed.failure is None or timed.failure.fault is not Fault.CRASH:
                break
        return timed

    def _allowed(self, key: str) -> bool:
        self._run_plain()  # may be the config in question
        return not self.setup.ledger.banned(key)

    def _once(self, key: str, task: TimingRequest) -> TimingResult:
        if not self.setup.ledger.began(key):
            return _BANNED
        try:
            timed = self.setup.worker.time(task)
        except KeyboardInterrupt:  # not the config's fault
            self.setup.ledger.ended(key)
            raise
        if timed.failure is None or not timed.failure.fatal:
            self.setup.ledger.ended(key)
        else:
            self.setup.ledger.died(key)
        return timed

    def _codes(self, instances: Sequence[Instance]) -> list[Code]:
        """Compile configs, from the cache if possible. Raises UsageError for one that no longer compiles."""
        codes: dict[int, Code] = {}
        for position, outcome in self._compilation.compile(list(map(render, instances))):
            if isinstance(outcome, Failed):
                raise UsageError(
                    f"{encode(to_fields(instances[position].config))} no longer compiles: {outcome.reason}"
                )
            codes[position] = _code(instances[position], outcome)
        return [codes[position] for position in range(len(instances))]


def _code(instance: Instance, cubin: Cubin) -> Code:
    return Code(instance.fields(), cubin.image, cubin.symbols)


def _inputs_digest(operator: Operator[Any], problem: Any) -> str:
    """Return a digest of the operator's smallest inputs, because drawn lengths and gates affect the work."""
    drawn = operator.inputs(operator.tails(problem)[0], np.random.default_rng(0), operator.input_kinds[0])
    parts = [
        f"{name} {np.asarray(drawn[name]).dtype}".encode() + np.asarray(drawn[name]).tobytes() for name in sorted(drawn)
    ]
    return sha256(b"".join(parts)).hexdigest()[:8]


def _race_outcome(race: _Race, voided: int, *, own_clock: bool = False) -> RaceOutcome:
    standing, winner = race.standing, race.standing.winner
    measurement = replace(
        _measurement_of(standing.contenders[winner].time_us, [samples[winner].state for samples in race.result.rounds]),
        regret_bound=standing.regret_bound,
        flip_probability=standing.flip_probability,
        floor_us=race.result.floor_us,
    )
    rounds = tuple(tuple(map(_lap, samples)) for samples in race.result.rounds)
    return RaceOutcome(race.entrants, standing, measurement, rounds, own_clock, race.result.floor_us, voided)


def _lap(sample: Sample) -> Lap:
    state = sample.state
    return Lap(sample.time_us, state.sm_mhz, state.throttle, state.temperature_c, state.late)


def _measurement_of(time_us: Estimate, states: Sequence[State]) -> Measurement:
    """Return a time with the device state during its samples."""
    state = together(states)
    return Measurement(
        time_us.mid,
        time_us.low,
        time_us.high,
        time_us.count,
        sm_mhz=state.sm_mhz,
        throttle=state.throttle,
        temperature_c=state.temperature_c,
        late=state.late,
    )


def _measurement(samples: Sequence[Sample]) -> Measurement:
    return _measurement_of(estimate([sample.time_us for sample in samples]), [sample.state for sample in samples])


def _verdict(timed: TimingResult, where: str) -> Verdict:
    if timed.verdict is not None and (timed.failure is None or not timed.verdict.ok):
        return timed.verdict
    return Verdict((), (timed.failure.reason if timed.failure else "nothing was compared",), (), where)


def _twin(attempt: Attempt) -> object:
    """Return a key shared by attempts with the same machine code and launches."""
    assert attempt.resources is not None, "a timed config has been compiled"
    return attempt.resources.sass_digest, attempt.identity.plan


def _ranks(values: Any) -> Any:
    return np.argsort(np.argsort(values))


def _key(identity: Identity) -> str:
    return sha256(repr(identity).encode()).hexdigest()[:16]
