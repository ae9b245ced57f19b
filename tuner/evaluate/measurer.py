"""The evaluator whose evidence is time: configs are compiled, checked and timed on a device, and finalists race."""

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
from tuner.base.canonical import encode
from tuner.compiler.checked import checked_code
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.errors import UsageError
from tuner.evaluate.compilation import Compilation
from tuner.evaluate.evaluator import Finalists, RaceOutcome
from tuner.evaluate.measure.device import SIMULATED, Code, Fault
from tuner.evaluate.measure.drift import DriftMonitor
from tuner.evaluate.measure.final import Rules, Standing, decide
from tuner.evaluate.measure.ledger import Ledger
from tuner.evaluate.measure.messages import DeviceFailure, RaceRequest, RaceResult, TimingRequest, TimingResult
from tuner.evaluate.measure.policy import MeasurementPolicy
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

_REPEATS = 2  # times that samples are drawn again after a drift; then the device is taken as it is
_LEAST_ROUNDS = 3  # at own clocks; with fewer, the race at one clock decides
_OWN_CLOCK_S = 10.0  # in which rounds at own clocks begin: each takes a tenth of a second for a contender
# × the best one's predicted cost: nothing is that wrong which the session's times have borne out, by their rank
# correlation over so many configs of an implementation.
_HOPELESS, _CONFIRMED_BY, _CONFIRMED = 20.0, 8, 0.5
# What a kernel did; other faults, as where memory is lacking, say nothing about it.
_KERNEL_FAULTS = (Fault.WRONG, Fault.UNSTEADY, Fault.ILLEGAL, Fault.TIMEOUT, Fault.CRASH)


@dataclass(frozen=True)
class _Race:
    """A race that was run, by position among the finalists."""

    entrants: tuple[int, ...]
    result: RaceResult
    standing: Standing


@dataclass(frozen=True)
class Setup:
    """What a Measurer measures with. The worker and the ledger outlive one problem."""

    worker: Worker
    policy: MeasurementPolicy = field(default_factory=MeasurementPolicy)
    ledger: Ledger = field(default_factory=Ledger)


class Measurer:
    """See `Evaluator`. Times on the device what compiles, while the next configs compile.

    A measured config keeps its prediction, so that its time tells how far predictions hold. `best_us` is the time to
    beat, as the device runs now: the best config of earlier sessions is timed again before any new one.
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
        """Raises UsageError where the device is not the `gpu` to measure for."""
        self.operator, self._problem, self.gpu = operator, problem, gpu
        facts = setup.worker.describe().facts
        self.setup = replace(setup, policy=setup.policy.on(facts))
        self.best_us = inf
        self.drift = self.setup.policy.drift
        self.drift_monitor = DriftMonitor(setup.worker, self.setup.policy)
        self._current: set[object] = set()  # machine codes that were timed while the device ran as it does now
        self._earlier: Instance | None = None
        self._plain: dict[str, TimingRequest] | None = None  # by key: what a new process runs first
        self._started = -1  # how often the worker had restarted when it last did
        self._best_cost = inf  # predicted, of what takes `best_us`
        self._pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)  # (predicted, measured)
        self._verdicts: dict[Identity, Verdict] = {}
        self._twins: dict[object, tuple[str, TimingResult]] = {}  # by machine code: the first config that is it
        self._model, self.device = str(facts["model"]), str(facts.get("uuid", ""))
        # What a simulation says must never be taken for what a device did.
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
        self._prepare_plain()  # which needs the compilers, as the batch does from here on
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
        """Those of this session; configs that an earlier one measured are judged again."""
        self._run_plain()
        identities = [self.identity(instance) for instance in batch]
        unknown = [i for i, identity in enumerate(identities) if identity not in self._verdicts]
        for i, code in zip(unknown, self._codes([batch[i] for i in unknown]), strict=True):
            timed = self._on_device(identities[i], TimingRequest(code, self.setup.policy, timed=False))
            self._verdicts[identities[i]] = _verdict(timed, self._model)
        yield from enumerate(self._verdicts[identity] for identity in identities)

    def checked_code(self, instance: Instance) -> CheckedCode:
        """What the device's verdict on a config holds for."""
        return checked_code(instance, self.gpu, self._driver)

    def prove(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Proof | Failed]]:
        """(position in `batch`, what the device said of it, or why it said nothing) as they finish."""
        self._prepare_plain()  # which needs the compilers, as the batch does from here on
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
        """(positions of those that came through, times of the rounds); nobody where the device fails for all."""
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
        """Race the finalists in turns, so that all run at one clock.

        Where one of them draws so much power that it would lower its own clock, those near the best and the default
        race again, each at its own clock: a kernel runs like that where nothing else does, and where power is short
        it takes from its neighbours what it draws.
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
        """None where no finalist came through."""
        survivors, result = self.race([finalists.configs[i] for i in positions], seed, own_clock=own_clock)
        if not result.rounds:
            return None
        entrants = [positions[i] for i in survivors]
        default = entrants.index(finalists.default) if finalists.default in entrants else None
        rules = Rules(tuple(finalists.keys[i] for i in entrants), default, self.setup.policy.tie, result.floor_us)
        return _Race(tuple(entrants), result, decide(result.times_us, rules, seed))

    def is_current(self, attempt: Attempt) -> bool:
        """Whether its time is of this session, and of the pace at which the device runs now."""
        return _twin(attempt) in self._current

    def _run_plain(self) -> None:
        """Let a new process run the plain kernel before all others.

        The timed problem is too large for a float64 reference: what the first kernel makes of it stands in for one.
        """
        if self._started == self.setup.worker.restarts:
            return
        self._started = self.setup.worker.restarts
        for key, task in self._prepare_plain().items():
            if not self.setup.ledger.banned(key):
                self._once(key, task)

    def _prepare_plain(self) -> dict[str, TimingRequest]:
        """Kept, for while a batch is under way the compilers are busy with it."""
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
        """A batch with its positions. While there is no time to beat, the configs that may set one come first, so that
        hopeless ones are cut short. The best of earlier sessions has no position: its row is from then.
        """
        line: list[tuple[int | None, Instance]] = list(enumerate(batch))
        if self.best_us == inf and batch:
            line.sort(key=lambda entry: self._turn(entry[1]))
            if self._earlier:
                line.insert(0, (None, self._earlier))
        return line

    def _timed(self, instance: Instance, attempt: Attempt, cubin: Cubin) -> Attempt:
        if self._confirmed(instance) and attempt.prediction and attempt.prediction.cost > _HOPELESS * self._best_cost:
            slower = f"predicted over {_HOPELESS:g} × as slow as the best that was measured"
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
        if measurement.time_us < self.best_us and not duplicate:  # whose samples are of an earlier level
            self.best_us = measurement.time_us
            self._best_cost = attempt.prediction.cost if attempt.prediction else inf
        if attempt.prediction and not duplicate:
            self._pairs[instance.name].append((attempt.prediction.cost, measurement.time_us))
        return replace(attempt, measurement=measurement)

    def _confirmed(self, instance: Instance) -> bool:
        """Whether times bear out what is predicted of an implementation here."""
        predicted, measured = np.array(self._pairs[instance.name]).reshape(-1, 2).T
        if len(predicted) < _CONFIRMED_BY or min(np.ptp(predicted), np.ptp(measured)) == 0:
            return False
        return float(np.corrcoef(_ranks(predicted), _ranks(measured))[0, 1]) >= _CONFIRMED

    def _turn(self, instance: Instance) -> tuple[bool, float]:
        """Who goes first where nothing was timed yet: the default that is predicted best, for it is to be beaten."""
        default = instance.implementation.default(instance.problem, self.gpu.arch)
        expected = self.prior(instance)
        return instance.config != default, inf if np.isnan(expected) else expected

    def _steady(self, identity: Identity, task: TimingRequest) -> TimingResult:
        """Samples that the drift monitor confirms; those that a drift voids are drawn again."""
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
        """Check and time. A process that dies may have died by chance: once more; and then never again."""
        key = _key(identity)
        before = "it took the device process down before, and is tried again by `tuner search --retry` alone"
        timed = TimingResult(None, failure=DeviceFailure(Fault.CRASH, before))
        while self._allowed(key):
            timed = self._once(key, task)
            if timed.failure is None or timed.failure.fault is not Fault.CRASH:
                break
        return timed

    def _allowed(self, key: str) -> bool:
        self._run_plain()  # which may be the config in question
        return not self.setup.ledger.banned(key)

    def _once(self, key: str, task: TimingRequest) -> TimingResult:
        self.setup.ledger.began(key)
        try:
            timed = self.setup.worker.time(task)
        except KeyboardInterrupt:  # which is no fault of the config
            self.setup.ledger.ended(key)
            raise
        if timed.failure is None or not timed.failure.fatal:
            self.setup.ledger.ended(key)
        return timed

    def _codes(self, instances: Sequence[Instance]) -> list[Code]:
        """Compiled configs, from the cache where they are known. Raises UsageError for one that no longer compiles."""
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
    """Of what the operator draws for its smallest sizes. Lengths and gates are drawn, too: others are other work."""
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
    """A time, with what the device was like at its samples."""
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
    """What attempts at one machine code have in common, launched alike."""
    assert attempt.resources is not None, "what is timed was compiled"
    return attempt.resources.sass_digest, attempt.identity.plan


def _ranks(values: Any) -> Any:
    return np.argsort(np.argsort(values))


def _key(identity: Identity) -> str:
    return sha256(repr(identity).encode()).hexdigest()[:16]
