"""A measuring session on a simulated device: what is timed, what is refused, and what survives."""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.support.patience import GENEROUS_S
from tests.support.simulated_device import Plant, SimulatedDevice, Simulation
from tests.support.simulated_search import (
    CALM,
    DECODING,
    GPU,
    NAIVE,
    PAGED,
    POLICY,
    SPACE,
    code,
    measurer,
    naive_configs,
    powered,
    request,
    timed_as,
)
from tuner.base.canonical_json import encode
from tuner.compiler.nvrtc import Compiler
from tuner.errors import UsageError
from tuner.evaluate import measurer as measurer_module
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.compilation import Compilation
from tuner.evaluate.measure.crash_ledger import CrashStreaks, Ledger
from tuner.evaluate.measure.device import Code, DeviceFaultError, Fault
from tuner.evaluate.measure.drift_reference import DriftMonitor
from tuner.evaluate.measure.messages import RaceRequest, RaceResult, TimingRequest, TimingResult
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.race_timing import Rules, decide
from tuner.evaluate.measure.samples import Sample, State, estimate, screen
from tuner.evaluate.measure.worker import DeviceServer, Worker
from tuner.evaluate.measurer import Measurer, Setup
from tuner.results.attempt import Attempt, Evidence, Stage
from tuner.search import study
from tuner.search.final_race import final_race
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import canonical, to_fields
from tuner.store.sql import Store


def spread(count: int) -> list[Any]:
    """Configs from all over the space."""
    return [SPACE[i * (len(SPACE) // count)] for i in range(count)]


def planted(what: str, **told: Any) -> Simulation:
    return replace(CALM, plants=(Plant("BM", SPACE[0].BM, what),), **told)


def test_a_right_config_is_timed_to_its_truth() -> None:
    stand = DeviceServer(replace(CALM, times_us=timed_as([SPACE[0]], [50.0])).open())
    result = stand.do(TimingRequest(code(SPACE[0]), POLICY))
    assert result.failure is None
    assert result.verdict.ok
    assert [sample.time_us for sample in result.samples] == pytest.approx([50.0] * POLICY.screening[-1][0], rel=0.05)


def test_a_config_that_cannot_beat_the_best_gets_few_samples() -> None:
    stand = DeviceServer(replace(CALM, times_us=timed_as([SPACE[0]], [50.0])).open())
    assert len(stand.do(TimingRequest(code(SPACE[0]), POLICY, best_us=30.0)).samples) == POLICY.screening[0][0]


@pytest.mark.parametrize(
    ("what", "fault", "stage"),
    [
        ("WRONG", Fault.WRONG, Stage.VERIFY),
        ("UNSTEADY", Fault.UNSTEADY, Stage.VERIFY),
        ("overrun", Fault.ILLEGAL, Stage.LAUNCH),
        ("REFUSED", Fault.REFUSED, Stage.LAUNCH),
        ("ILLEGAL", Fault.ILLEGAL, Stage.LAUNCH),
        ("TIMEOUT", Fault.TIMEOUT, Stage.LAUNCH),
    ],
)
def test_nothing_wrong_is_timed(what: str, fault: Fault, stage: Stage) -> None:
    result = DeviceServer(planted(what).open()).do(TimingRequest(code(SPACE[0]), POLICY))
    assert result.samples == ()
    assert result.failure is not None
    assert result.failure.fault is fault
    assert fault.stage is stage


def test_a_device_that_often_throttles_is_timed_by_the_samples_in_between() -> None:
    simulation = replace(CALM, throttled=0.3, times_us=timed_as([SPACE[0]], [50.0]))
    result = DeviceServer(simulation.open()).do(TimingRequest(code(SPACE[0]), replace(POLICY, warm_up_us=20_000)))
    assert [sample.time_us for sample in result.samples] == pytest.approx([50.0] * POLICY.screening[-1][0], rel=0.05)


@pytest.mark.parametrize(("what", "fault"), [("CRASH", Fault.CRASH), ("stuck", Fault.TIMEOUT)])
def test_a_config_that_takes_the_process_down_costs_only_itself(what: str, fault: Fault) -> None:
    other = next(config for config in SPACE if config.BM != SPACE[0].BM)
    with Worker(planted(what)) as worker:
        have_patience(worker, GENEROUS_S)
        assert worker.time(TimingRequest(code(other), POLICY)).samples
        have_patience(worker, 0.5 if what == "stuck" else GENEROUS_S)  # which no other config is timed with
        fell = worker.time(TimingRequest(code(SPACE[0]), POLICY)).failure
        assert fell is not None
        assert (fell.fault, fell.fatal) == (fault, True)
        have_patience(worker, GENEROUS_S)
        assert worker.time(TimingRequest(code(other), POLICY)).samples
        assert worker.restarts == 1


def have_patience(worker: Worker, seconds: float) -> None:
    """From the next request on."""
    worker._patience_s, worker._pool._limits = seconds, replace(worker._pool._limits, timeout_s=seconds)


class Idle(SimulatedDevice):
    """Its clock is low at first, and up after so many runs."""

    rise = 60

    def times_us(self, ready: Any, launches: int, policy: MeasurementPolicy) -> Sequence[float]:
        share = self.state().sm_mhz / super().state().sm_mhz
        return [time_us / share for time_us in super().times_us(ready, launches, policy)]

    def state(self) -> State:
        result = super().state()
        return replace(result, sm_mhz=round(result.sm_mhz * min(1.0, 0.3 + 0.7 * self._runs / self.rise)))


def test_a_config_that_finds_the_device_idle_is_timed_when_its_clock_is_up() -> None:
    simulation = replace(CALM, times_us=timed_as([SPACE[0]], [50.0]))
    result = DeviceServer(Idle(simulation)).do(TimingRequest(code(SPACE[0]), replace(POLICY, warm_up_us=20_000)))
    assert [sample.time_us for sample in result.samples] == pytest.approx([50.0] * POLICY.screening[-1][0], rel=0.05)


def test_a_kernel_whose_power_lowers_the_clock_is_timed_when_that_has_come_down() -> None:
    simulation = replace(CALM, times_us=timed_as([SPACE[0]], [50.0]), clocks=((encode(to_fields(SPACE[0])), 0.8),))
    result = DeviceServer(simulation.open()).do(TimingRequest(code(SPACE[0]), replace(POLICY, warm_up_us=10_000)))
    assert [sample.time_us for sample in result.samples] == pytest.approx(
        [50.0 / 0.8] * POLICY.screening[-1][0], rel=0.05
    )


def test_in_turns_all_run_at_one_clock_and_who_draws_most_pays_for_it_only_at_its_own() -> None:
    stand, (hungry, frugal) = DeviceServer(powered([SPACE[0], SPACE[1]]).open()), (code(SPACE[0]), code(SPACE[1]))
    in_turns, own = (stand.do(RaceRequest((hungry, frugal), POLICY, 12, 0, own_clock=own)) for own in (False, True))
    assert in_turns.capped
    assert decide(in_turns.times_us, Rules(((0,), (1,)))).winner == 0
    assert decide(own.times_us, Rules(((0,), (1,)))).winner == 1
    assert np.median(own.times_us, axis=0) == pytest.approx([97 / 0.9, 100], rel=0.02)


class Slow(SimulatedDevice):
    """The host takes its time between launches, as flushes of the L2 do."""

    batches = 0

    def times_us(self, ready: Any, launches: int, policy: MeasurementPolicy) -> Sequence[float]:
        self.batches += 1
        time.sleep(0.005)  # or longer
        return super().times_us(ready, launches, policy)


def test_the_gaps_of_a_short_kernel_count_while_it_runs_for_its_own_clock() -> None:
    device = Slow(replace(CALM, times_us=timed_as([SPACE[0]], [1.0])))
    timer = DeviceServer(device).timer(code(SPACE[0]), replace(POLICY, own_clock_us=50_000))
    before = device.batches
    timer.own_clock()
    assert 0 < device.batches - before < 50_000 / POLICY.most_launches  # what launches alone would take


class Crowded(SimulatedDevice):
    """Every tenth sample finds another process."""

    def state(self) -> State:
        return replace(super().state(), processes=2 if self._runs % 10 == 0 else 1)


def test_a_round_of_a_race_that_another_process_disturbed_does_not_count() -> None:
    raced = DeviceServer(Crowded(CALM)).do(RaceRequest((code(SPACE[0]), code(SPACE[1])), POLICY, 30, 0))
    assert len(raced.times_us) == 24


class Floored(SimulatedDevice):
    """Its driver refuses to launch nothing, the first time."""

    asked = 0

    def floor_us(self, policy: MeasurementPolicy) -> float:  # noqa: ARG002  # part of the protocol
        self.asked += 1
        if self.asked == 1:
            raise DeviceFaultError(Fault.REFUSED, "no graph of nothing", fatal=False)
        return 2.25


def test_the_floor_of_a_launch_is_measured_once_and_blames_no_contender_where_it_is_not_known() -> None:
    device = Floored(CALM)
    stand, heat = DeviceServer(device), RaceRequest((code(SPACE[0]),), POLICY, 3, 0)
    raced = [stand.do(heat) for _ in range(3)]
    assert [candidate.floor_us for candidate in raced] == [0.0, 2.25, 2.25]
    assert all(candidate.failure is None and candidate.rounds for candidate in raced)
    assert device.asked == 2


def test_a_race_of_slow_kernels_ends_in_time_with_fewer_rounds() -> None:
    raced = DeviceServer(CALM.open()).do(RaceRequest((code(SPACE[0]),), POLICY, 30, 0, limit_s=0.0))
    assert len(raced.times_us) == 1


# What spoils times without a sign, and makes those alike that follow each other.
SPOILED = {
    "as usual": {},
    "drift": {"drift": 0.1, "period": 60.0},
    "wander": {"wander": 0.03},
    "bursts": {"bursts": (0.02, 8, 1.3)},
    "periodic": {"every": (7, 1.5)},
    "all": {"drift": 0.05, "period": 60.0, "wander": 0.015, "bursts": (0.02, 8, 1.3), "every": (7, 1.5)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
def test_a_planted_best_is_recovered_in_19_of_20_sessions(spoiled: dict[str, Any]) -> None:
    configs = spread(12)
    times = [100.0, 103.0, 104.0, 106.0, *(110.0 + 10 * i for i in range(8))]
    results = []
    for seed in range(20):
        stand = DeviceServer(Simulation("sm_80", seed=seed, times_us=timed_as(configs, times), **spoiled).open())
        results.append(winner(stand, configs, seed))
    assert results.count(0) >= 19, results


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
def test_equals_are_told_apart_in_at_most_1_of_20_sessions(spoiled: dict[str, Any]) -> None:
    configs = spread(2)
    apart = 0
    for seed in range(20):
        stand = DeviceServer(
            Simulation("sm_80", seed=seed, times_us=timed_as(configs, [100.0, 100.0]), **spoiled).open()
        )
        raced = stand.do(RaceRequest(tuple(map(code, configs)), POLICY, POLICY.rounds, seed))
        standing = decide(raced.times_us, Rules(((0,), (1,))), seed)
        apart += not all(contender.tied for contender in standing.contenders)
    assert apart <= 1


def winner(stand: DeviceServer, configs: list[Any], seed: int) -> int:
    """Screen without the checks, as a session does, race the best four, decide."""
    drift, best, medians = DriftMonitor(cast(Worker, SimpleNamespace(race=stand.do)), POLICY), float("inf"), []
    for config in configs:
        medians.append(screened(stand, config, best, drift))
        best = min(best, medians[-1])
    field = sorted(range(len(configs)), key=medians.__getitem__)[:4]
    raced = stand.do(RaceRequest(tuple(code(configs[i]) for i in field), POLICY, POLICY.rounds, seed))
    return field[decide(raced.times_us, Rules(tuple((i,) for i in field)), seed).winner]


def screened(stand: DeviceServer, config: Any, best_us: float, drift: DriftMonitor) -> float:
    """By samples that the drift monitor confirms, or by the third ones."""
    for _ in range(3):
        kept = screen(stand.timer(code(config), POLICY).sample, stand.session, POLICY, best_us)
        if drift.confirms(code(config), kept):
            break
    return estimate([stored.time_us for stored in kept]).mid


@pytest.fixture(scope="module")
def calm_worker() -> Iterator[Worker]:
    with Worker(CALM) as worker:
        yield worker


def test_a_search_on_a_device_ends_with_a_measured_record_that_knows_how_sure_it_is(
    machines: tuple[Compiler, Checker],
) -> None:
    with Store.open(":memory:") as store, Worker(CALM) as worker:
        evaluator = measurer(machines, worker)
        outcome, standing = final_race(study.search(request(), store, evaluator), store, evaluator)
        record = store.record(PAGED.name, canonical(DECODING), GPU.name)
        assert standing is not None
        assert record == outcome.record
        assert record is not None and record.measurement is not None
        assert record.evidence is Evidence.MEASURED
        assert record.measurement.flip_probability == standing.flip_probability
        others = [contender.ratio.mid for i, contender in enumerate(standing.contenders) if i != standing.winner]
        assert record.margin == pytest.approx(min(others) - 1)
        assert record.verdict.where == "simulated"
        assert "simulated" in record.identity.policy
        assert evaluator.drift_monitor.times_us
        (race,) = store.races(PAGED.name, canonical(DECODING), GPU.name)
        assert race == outcome.final
        assert race.settled(record) and len(race.rounds) == record.measurement.samples == POLICY.rounds
        assert {lap.sm_mhz for laps in race.rounds for lap in laps} == {record.measurement.sm_mhz} == {1980}
        timed = [stored.attempt.measurement for stored in store.attempts(PAGED.name)]
        assert [(stored.sm_mhz, stored.temperature_c, stored.late) for stored in timed if stored] == [
            (1980, 60, 0.0)
        ] * 4


def test_times_of_other_inputs_are_another_identity(machines: tuple[Compiler, Checker], calm_worker: Worker) -> None:
    def longer(*asked: Any) -> dict[str, Any]:
        drawn = PAGED.inputs(*asked)
        return {**drawn, "cache_seqlens": drawn["cache_seqlens"] + 1}

    instance = Instance.default(PAGED, NAIVE, DECODING, GPU.arch)
    identities = [
        Measurer(operator, DECODING, GPU, machines[0], Setup(calm_worker, POLICY)).identity(instance)
        for operator in (PAGED, PAGED, replace(PAGED, inputs=longer))
    ]
    assert identities[0] == identities[1] != identities[2]
    assert replace(identities[2], policy=identities[0].policy) == identities[0]


def test_the_default_is_timed_first_and_screens_the_others(machines: tuple[Compiler, Checker]) -> None:
    default, *others = sorted(naive_configs(), key=lambda config: config != NAIVE.default(DECODING, GPU.arch))
    simulation = replace(CALM, times_us=timed_as([default, *others], [50.0, *[90.0] * len(others)]))
    with Worker(simulation) as worker:
        evaluator = measurer(machines, worker)
        batch = [Instance(PAGED, NAIVE, DECODING, config) for config in (*others[:2], default)]
        results = [(position, attempt.measurement) for position, attempt in evaluator.try_all(batch)]
    assert results[0][0] == 2
    assert [measurement.samples for _, measurement in results if measurement] == [
        POLICY.screening[-1][0],
        *[POLICY.screening[0][0]] * 2,
    ]


def test_while_the_plain_kernel_and_the_default_are_on_the_device_the_whole_batch_compiles(
    machines: tuple[Compiler, Checker],
) -> None:
    done: list[str] = []

    class Compiling(Compiler):
        def compile_many(self, jobs: Iterable[Any]) -> Iterator[tuple[int, Any]]:
            asked = list(jobs)
            done.append(f"compile {len(asked)}")
            return super().compile_many(asked)

    class Running(Worker):
        def time(self, task: TimingRequest) -> TimingResult:
            done.append("time" if task.timed else "run")
            return super().time(task)

    with Running(CALM) as worker, Compiling(1) as compiler:
        evaluator = measurer((compiler, machines[1]), worker)
        list(evaluator.try_all([Instance(PAGED, NAIVE, DECODING, config) for config in naive_configs()[:3]]))
    assert done == ["compile 1", "compile 3", "run", "time", "time", "time"]


@pytest.mark.slow
def test_a_resumed_search_screens_against_the_best_of_the_earlier_one_as_it_runs_now(
    machines: tuple[Compiler, Checker],
) -> None:
    default = NAIVE.default(DECODING, GPU.arch)
    configs = naive_configs()
    with Store.open(":memory:") as store:
        for budget, best_us, other_us in ((2, 50.0, 90.0), (4, 70.0, 120.0)):
            times = [best_us if config == default else other_us for config in configs]
            with Worker(replace(CALM, times_us=timed_as(configs, times))) as worker:
                evaluator = measurer(machines, worker)
                outcome = study.search(request(budget), store, evaluator)
    samples = [candidate.attempt.measurement.samples for candidate in outcome.tried if candidate.attempt.measurement]
    assert samples[2:] == [POLICY.screening[0][0]] * 2
    assert evaluator.best_us == pytest.approx(70.0, rel=0.05)


def test_samples_that_a_drift_of_the_reference_kernel_voids_are_drawn_again(machines: tuple[Compiler, Checker]) -> None:
    configs = naive_configs()[:4]
    calm = replace(CALM, drift=0.0, times_us=timed_as(configs, [50.0] * 4))
    for spell in ((28, 42, 1.5), (0, 0, 1.0)):
        with Worker(replace(calm, spell=spell)) as worker:
            evaluator = measurer(machines, worker)
            batch = [Instance(PAGED, NAIVE, DECODING, config) for config in configs]
            times = [stored.measurement.time_us for _, stored in evaluator.try_all(batch) if stored.measurement]
        assert times == pytest.approx([50.0] * 4, rel=0.03)
        assert bool(evaluator.drift_monitor.voided) == (spell[0] > 0)


def looked(*rounds: tuple[float, int]) -> Worker:
    """A device on which every look of the drift monitor finds the reference at 100 µs, and beside it (µs, MHz)."""
    answers = iter([RaceResult(((Sample(100.0, State(1980)),),) * 3)])
    others = iter(RaceResult(((Sample(100.0, State(1980)), Sample(us, State(mhz))),) * 3) for us, mhz in rounds)
    return cast(Worker, SimpleNamespace(race=lambda heat: next(answers if len(heat.codes) == 1 else others)))


def test_samples_of_one_bad_moment_are_not_confirmed_by_a_second_look() -> None:
    drift = DriftMonitor(looked((100.0, 1980), (130.0, 1980), (100.0, 1980)), POLICY)
    assert drift.confirms(code(SPACE[0]), [Sample(100.0, State(1980))] * 3)
    slow = [Sample(130.0, State(1980))] * 3
    assert [drift.confirms(code(SPACE[1]), slow) for _ in range(3)] == [False, True, False]
    assert (drift.voided, drift.level_us) == (2, 100.0)


def test_a_kernel_that_lowers_its_own_clock_is_confirmed_beside_the_reference_by_its_cycles() -> None:
    drift = DriftMonitor(looked((117.0, 1980)), POLICY)
    assert drift.confirms(code(SPACE[0]), [Sample(100.0, State(1980))] * 3)
    assert drift.confirms(code(SPACE[1]), [Sample(130.0, State(1782))] * 3)  # 10 % longer, at a clock 10 % lower


def test_the_same_machine_code_is_timed_once_and_its_row_says_of_which(machines: tuple[Compiler, Checker]) -> None:
    instance = Instance.default(PAGED, NAIVE, DECODING, GPU.arch)
    with Worker(CALM) as worker:
        attempts = [attempt for _, attempt in measurer(machines, worker).try_all([instance] * 2)]
    assert [attempt.kind for attempt in attempts] == ["ok", "duplicate"]
    assert attempts[1].measurement == replace(attempts[0].measurement, duplicate_of=encode(attempts[0].config))


class Noting(Worker):
    """Remembers the tasks that it was given."""

    def __init__(self, place: Simulation) -> None:
        super().__init__(place)
        self.tasks: list[TimingRequest] = []

    def time(self, task: TimingRequest) -> TimingResult:
        self.tasks.append(task)
        return super().time(task)


def test_a_process_that_starts_in_the_middle_of_a_batch_runs_the_plain_kernel_first_too(
    machines: tuple[Compiler, Checker],
) -> None:
    with Noting(CALM) as worker:
        result = measurer(machines, worker).try_all(
            [Instance(PAGED, NAIVE, DECODING, config) for config in naive_configs()[:2]]
        )
        next(result)
        worker.rest()
        next(result)
    assert [task.timed for task in worker.tasks] == [False, True, False, True]
    assert worker.tasks[0] == worker.tasks[2]


def test_samples_of_a_duplicate_do_not_lower_the_time_to_beat(machines: tuple[Compiler, Checker]) -> None:
    instance = Instance.default(PAGED, NAIVE, DECODING, GPU.arch)
    with Worker(CALM) as worker:
        evaluator = measurer(machines, worker)
        list(evaluator.try_all([instance]))
        evaluator.best_us = slower_us = 2 * evaluator.best_us  # as after a drift of the device
        list(evaluator.try_all([instance]))
    assert evaluator.best_us == slower_us


def test_every_attempt_of_a_device_that_faults_is_a_row_with_its_class(machines: tuple[Compiler, Checker]) -> None:
    faulty = replace(CALM, plants=(Plant("columns", 8, "ILLEGAL"), Plant("columns", 16, "CRASH")))
    with Store.open(":memory:") as store, Worker(faulty) as worker:
        outcome = study.search(request(), store, measurer(machines, worker))
        assert outcome.record is None
        reasons = [stored.attempt.failure.reason for stored in store.attempts(operator=PAGED.name)]
    assert len(reasons) == 4
    assert all(reason.startswith(("illegal access", "crash", "not run")) for reason in reasons), reasons
    assert not all(reason.startswith("not run") for reason in reasons)


@pytest.mark.slow
def test_an_implementation_that_never_comes_back_takes_the_device_down_twice_and_others_are_still_timed() -> None:
    falling = [config for config in SPACE if config.BM == SPACE[0].BM][:3]
    with Worker(planted("TIMEOUT")) as worker:
        fell = [worker.time(TimingRequest(code(config), POLICY)).failure for config in falling]
        assert [failure and failure.fault for failure in fell] == [Fault.TIMEOUT, Fault.TIMEOUT, Fault.SPARED]
        assert worker.restarts == 2
        default = NAIVE.default(DECODING, GPU.arch)
        other = Code(InstanceFields(PAGED.name, "naive", to_fields(DECODING), to_fields(default)), b"")
        assert worker.time(TimingRequest(other, POLICY)).samples


def test_an_implementation_is_spared_for_what_it_does_in_a_row_and_more_patiently_once_it_was_timed() -> None:
    falls = CrashStreaks()
    falls.record("new", "edges", "", timed=False)
    for config in "aab":  # one that is tried again counts once
        assert not falls.reason("new")
        falls.record("new", config, "a crash", timed=False)
    assert falls.reason("new") == "2 in a row of new crashed the device, the last by a crash"
    for config in "abc":
        falls.record("known", "good", "", timed=True)
        falls.record("known", config, "a crash", timed=False)
    for config in "def":
        assert not falls.reason("known")
        falls.record("known", config, "a crash", timed=False)
    assert "known" in falls.reason("known")


def test_a_config_that_crashed_the_device_twice_is_never_tried_again(
    machines: tuple[Compiler, Checker], tmp_path: Path
) -> None:
    config = NAIVE.default(DECODING, GPU.arch)
    instance = [Instance(PAGED, NAIVE, DECODING, config)]
    crashing = replace(CALM, plants=(Plant("threads", config.threads, "CRASH"),))
    for restarts in (2, 0):
        with Worker(crashing) as worker:
            ((_, attempt),) = measurer(machines, worker, Ledger(tmp_path / "ledger")).try_all(instance)
            assert attempt.failure is not None
            assert attempt.failure.stage is Stage.LAUNCH
            assert worker.restarts == restarts


@pytest.mark.slow
def test_what_failed_on_the_device_is_tried_again_where_that_is_asked_for(machines: tuple[Compiler, Checker]) -> None:
    """As after an incident of the machine: the ledger that bans is another one then."""
    timing_out = replace(CALM, plants=(Plant("columns", 8, "TIMEOUT"),))
    with Store.open(":memory:") as store:
        for place, asked, again in ((timing_out, request(), 4), (CALM, request(), 0), (CALM, retried(), 1)):
            with Worker(place) as worker:
                before = len(store.attempts(PAGED.name))
                outcome = study.search(asked, store, measurer(machines, worker))
                assert len(store.attempts(PAGED.name)) - before >= again
                failed = [candidate for candidate in outcome.tried if candidate.attempt.failure is not None]
                assert bool(failed) == (not asked.retry)


def retried() -> study.SearchRequest:
    return replace(request(), retry=True)


def test_a_search_for_another_gpu_than_the_one_that_is_there_is_refused(machines: tuple[Compiler, Checker]) -> None:
    with Worker(replace(CALM, gpu="H200")) as worker, pytest.raises(UsageError, match="--gpu H200"):
        measurer(machines, worker)


KILLED = {  # in a search of six configs: at which call of what its process is killed, and how many rows it leaves
    "compiling": (Compiler, "compile_many", 2, 0),
    "checking": (Worker, "time", 4, 2),
    "confirming samples": (Worker, "race", 4, 3),
    "storing an attempt": (Store, "append", 5, 4),
    "judging the finalists": (Store, "append_verdict", 1, 6),
    "promoting": (Store, "promote", 1, 6),
    "racing": (Worker, "race", 7, 6),
    "promoting the winner of the race": (Store, "promote", 2, 6),
}


def lethal(kind: type[Any], owner: type[Any], method: str, nth: int) -> type[Any]:
    """The class itself or, for the owner, one whose method ends its process by SIGKILL at the nth call."""
    if kind is not owner:
        return kind
    calls = count(1)

    def deadly(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(kind, method)(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {method: deadly})


def killed_search(folder: Path, *told: Any) -> int:
    """The signal that ended a search in a process of its own."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        store_kind, compiler_kind, worker_kind = (lethal(kind, *told) for kind in (Store, Compiler, Worker))
        with (
            store_kind.open(folder / "db") as store,
            compiler_kind(1) as compiler,
            Checker(1) as checker,
            worker_kind(CALM) as worker,
        ):
            evaluator = measurer((compiler, checker), worker, Ledger(folder / "ledger"))
            final_race(study.search(request(6), store, evaluator), store, evaluator)
    finally:
        os._exit(0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", KILLED)
def test_a_session_that_is_killed_at_any_step_is_resumed_and_nothing_is_repeated(
    step: str, tmp_path: Path, machines: tuple[Compiler, Checker], calm_worker: Worker
) -> None:
    *arguments, stored = KILLED[step]
    assert killed_search(tmp_path, *arguments) == -signal.SIGKILL
    with Store.open(tmp_path / "db") as store:
        before = store.attempts(operator=PAGED.name)
        evaluator = measurer(machines, calm_worker, Ledger(tmp_path / "ledger"))
        outcome, standing = final_race(study.search(request(6), store, evaluator), store, evaluator)
        rows = store.attempts(operator=PAGED.name)
        assert outcome.reused == len(before) == stored
        assert rows[: len(before)] == before
        assert len({row.attempt.identity for row in rows}) == len(rows) == 6
        assert standing is not None
        assert store.record(PAGED.name, canonical(DECODING), GPU.name) == outcome.record


class Interrupted(Worker):
    """Somebody presses Ctrl-C while a config is on the device of a calm worker."""

    def __init__(self, calm: Worker) -> None:
        self.restarts, self.describe = 0, calm.describe

    def time(self, _: TimingRequest) -> TimingResult:
        raise KeyboardInterrupt


def test_a_config_that_was_interrupted_twice_is_tried_again(
    machines: tuple[Compiler, Checker], calm_worker: Worker, tmp_path: Path
) -> None:
    default = [Instance.default(PAGED, NAIVE, DECODING, GPU.arch)]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            list(measurer(machines, Interrupted(calm_worker), Ledger(tmp_path / "ledger")).try_all(default))
    ((_, attempt),) = measurer(machines, calm_worker, Ledger(tmp_path / "ledger")).try_all(default)
    assert attempt.measurement is not None


def test_a_ledger_bans_what_did_not_come_back_twice_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for _ in range(2):
        ledger = Ledger(path)
        for _ in range(2):  # as often as a config may be lost
            ledger.began("good")
            ledger.ended("good")
        ledger.began("bad")  # and the process is gone
    assert Ledger(path).banned("bad")
    assert not Ledger(path).banned("good")
    assert not ledger.banned("good")


def test_a_ledger_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "ledger" / "RTX 5090"
    Ledger(path).began("first")
    assert path.read_text() == "began first\n"


def test_a_ledger_line_that_a_kill_cut_off_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("began a\nbegan a")
    assert not Ledger(path).banned("a")


def test_a_ledger_line_that_a_kill_cut_off_takes_no_later_one_with_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("began a\nbegan a")
    Ledger(path).began("b")
    Ledger(path).began("b")
    result = Ledger(path)
    assert (result.banned("a"), result.banned("b")) == (False, True)


def predict_costs(monkeypatch: pytest.MonkeyPatch, costs: Sequence[float]) -> None:
    """The costs that are predicted of the next configs, in order."""
    compiled, remaining = Compilation.attempt, iter(costs)

    def attempt(self: Compilation, *about: Any) -> Attempt:
        real = compiled(self, *about)
        assert real.prediction is not None
        return replace(real, prediction=replace(real.prediction, cost=next(remaining)))

    monkeypatch.setattr(Compilation, "attempt", attempt)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("borne_out", [True, False])
def test_only_what_times_have_borne_out_leaves_a_config_untimed(
    machines: tuple[Compiler, Checker], borne_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurer_module, "_CONFIRMED_BY", 3)  # the kernel has few configs
    default, *others = sorted(naive_configs(), key=lambda config: config != NAIVE.default(DECODING, GPU.arch))
    batch = [default, *others][:4]
    simulation = replace(
        CALM, times_us=timed_as(batch, [50.0, 60.0, 70.0, 55.0] if borne_out else [70.0, 60.0, 50.0, 55.0])
    )
    with Worker(simulation) as worker:
        predict_costs(monkeypatch, [1.0, 2.0, 3.0, 1000.0])
        evaluator = measurer(machines, worker)
        results = [
            attempt for config in batch for _, attempt in evaluator.try_all([Instance(PAGED, NAIVE, DECODING, config)])
        ]
    *_, last = results
    assert len(results) == 4
    assert (last.measurement is None) == borne_out
    assert not borne_out or (last.failure is not None and last.failure.reason.startswith("not timed"))
