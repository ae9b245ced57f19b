"""Tests of the final race: its contenders, and the config of the record."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.simulated_search import (
    CALM,
    DECODING,
    GPU,
    NAIVE,
    PAGED,
    POLICY,
    measurer,
    naive_configs,
    powered,
    request,
    timed_as,
)
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.measure.crash_ledger import Ledger
from tuner.evaluate.measure.messages import RaceRequest, RaceResult
from tuner.evaluate.measure.worker import Worker
from tuner.evaluate.measurer import Setup
from tuner.results.attempt import Evidence
from tuner.results.verdict import Verdict
from tuner.search import study
from tuner.search.final_race import final_race
from tuner.search.session import Session, compilers_beside_timing, measured, session
from tuner.spec.instance import Instance
from tuner.spec.problem import to_fields
from tuner.store.sql import Store

WRONG = Verdict((), ("o: other bits",))


def test_of_contenders_that_tie_in_the_race_the_nearest_to_the_default_wins(machines: tuple[Compiler, Checker]) -> None:
    configs = naive_configs()
    simulation = replace(CALM, times_us=timed_as(configs, [50.0] * len(configs)))
    with Store.open(":memory:") as store, Worker(simulation) as worker:
        evaluator = measurer(machines, worker)
        outcome, _ = final_race(study.search(request(6), store, evaluator), store, evaluator)
    default = NAIVE.default(DECODING, GPU.arch)
    assert outcome.record is not None
    assert dict(outcome.record.config) == to_fields(default)


class Racing(Worker):
    """Notes of each race whether it was at own clocks."""

    def race(self, heat: RaceRequest) -> RaceResult:
        if heat.rounds > 3:  # with which the drift monitor is content
            self.raced = [*getattr(self, "raced", []), heat.own_clock]
        return super().race(heat)


class Cut(Racing):
    """At own clocks it comes through two rounds."""

    def race(self, heat: RaceRequest) -> RaceResult:
        result = super().race(heat)
        return replace(result, rounds=result.rounds[:2]) if heat.own_clock else result


def test_where_few_rounds_at_own_clocks_fit_into_the_time_those_at_one_clock_decide(
    machines: tuple[Compiler, Checker],
) -> None:
    default = NAIVE.default(DECODING, GPU.arch)
    hungry, frugal, *others = (naive_config for naive_config in naive_configs() if naive_config != default)
    with Store.open(":memory:") as store, Cut(powered([hungry, frugal, default, *others])) as worker:
        evaluator = measurer(machines, worker)
        outcome, _ = final_race(study.search(request(6), store, evaluator), store, evaluator)
    assert worker.raced == [False, True]
    assert outcome.record is not None
    assert outcome.record.config == to_fields(hungry)


@pytest.mark.parametrize("short_of_power", [True, False])
def test_where_power_lowers_a_clock_the_winner_is_the_fastest_at_its_own(
    machines: tuple[Compiler, Checker], *, short_of_power: bool
) -> None:
    default = NAIVE.default(DECODING, GPU.arch)
    hungry, frugal, *others = (naive_config for naive_config in naive_configs() if naive_config != default)
    simulation = powered([hungry, frugal, default, *others])
    with (
        Store.open(":memory:") as store,
        Racing(simulation if short_of_power else replace(simulation, clocks=())) as worker,
    ):
        evaluator = measurer(machines, worker)
        outcome, _ = final_race(study.search(request(6), store, evaluator), store, evaluator)
    assert outcome.record is not None and outcome.record.measurement is not None
    assert outcome.record.config == to_fields(frugal if short_of_power else hungry)
    assert outcome.record.measurement.time_us == pytest.approx(100 if short_of_power else 97, rel=0.02)
    assert worker.raced == ([False, True] if short_of_power else [False])


def test_what_is_right_and_near_the_best_of_it_races_and_the_default_in_any_case(
    machines: tuple[Compiler, Checker],
) -> None:
    default = NAIVE.default(DECODING, GPU.arch)
    others = [naive_config for naive_config in naive_configs() if naive_config != default]
    simulation = replace(
        CALM, times_us=timed_as([default, *others], [1000.0, *(30 * 1.5**i for i in range(len(others)))])
    )
    with Store.open(":memory:") as store, Store.open(":memory:") as other, Worker(simulation) as worker:
        evaluator = measurer(machines, worker)
        search_result = study.search(request(3), store, evaluator)
        _, standing = final_race(search_result, store, evaluator)
        fastest, second, _ = sorted(search_result.tried, key=lambda candidate: candidate.attempt.value or 0.0)
        tried = (
            replace(fastest, verdict=WRONG),
            *(candidate for candidate in search_result.tried if candidate is not fastest),
        )
        outcome, _ = final_race(replace(search_result, tried=tried), other, evaluator)
    assert standing is not None and outcome.record is not None
    assert len(standing.contenders) == 2
    assert outcome.record.config == second.attempt.config


def test_what_was_timed_on_a_slower_day_races_with_the_best_of_a_faster_one(
    machines: tuple[Compiler, Checker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.search.study.FINALISTS", 2)
    monkeypatch.setattr("tuner.search.final_race.FINALISTS", 2)
    configs = naive_configs()
    with Store.open(":memory:") as store:
        for budget, pace in ((3, 1.0), (len(configs), 1.1)):
            known = [dict(stored.attempt.config) for stored in store.attempts(operator=PAGED.name)]
            times = [pace * (50.0 if to_fields(config) in known else 47.5) for config in configs]
            times = times if known else [50.0] * len(configs)
            with Worker(replace(CALM, times_us=timed_as(configs, times))) as worker:
                evaluator = measurer(machines, worker)
                search_result = study.search(request(budget), store, evaluator)
                outcome, standing = final_race(search_result, store, evaluator)
    assert search_result.record is not None and dict(search_result.record.config) in known
    assert outcome.record is not None and dict(outcome.record.config) not in known
    assert standing is not None
    assert standing.contenders[standing.winner].time_us.mid == pytest.approx(1.1 * 47.5, rel=0.03)


def test_the_simplest_config_that_overlaps_the_best_races_whatever_its_rank(
    machines: tuple[Compiler, Checker], monkeypatch: pytest.MonkeyPatch
) -> None:
    default, configs = NAIVE.default(DECODING, GPU.arch), naive_configs()
    simulation = replace(
        CALM, times_us=timed_as(configs, [1000.0 if config == default else 50.0 for config in configs])
    )
    with Store.open(":memory:") as store, Worker(simulation) as worker:
        evaluator = measurer(machines, worker)
        search_result = study.search(request(5), store, evaluator)
        plain, *others = sorted(search_result.tried, key=lambda candidate: candidate.differs)
        tried = [plain, *(seemed(other, 40.0 + 0.1 * i) for i, other in enumerate(reversed(others)))]
        monkeypatch.setattr("tuner.search.final_race.FINALISTS", 2)
        outcome, _ = final_race(replace(search_result, tried=tuple(tried)), store, evaluator)
    simple = [other.attempt.config for other in others if other.differs == others[0].differs]
    assert len(simple) <= len(others) - 2  # two at least seem faster
    assert outcome.record is not None
    assert outcome.record.config in simple


def test_who_was_screened_while_the_device_was_slower_than_its_drift_tells_races_too(
    machines: tuple[Compiler, Checker], monkeypatch: pytest.MonkeyPatch
) -> None:
    default, *others = sorted(naive_configs(), key=lambda config: config != NAIVE.default(DECODING, GPU.arch))
    monkeypatch.setattr("tuner.search.final_race.FINALISTS", (len(others) + 1) // 2)
    simulation = replace(CALM, times_us=timed_as([default, *others], [90.0, 48.0, *[50.0] * (len(others) - 1)]))
    with Store.open(":memory:") as store, Worker(simulation) as worker:
        evaluator = measurer(machines, worker)
        search_result = study.search(request(len(others) + 1), store, evaluator)
        tried = [
            seemed(candidate, 51.0) if dict(candidate.attempt.config) == to_fields(others[0]) else candidate
            for candidate in search_result.tried
        ]
        assert others[0] in [candidate.instance.config for candidate in tried]
        outcome, _ = final_race(replace(search_result, tried=tuple(tried)), store, evaluator)
    assert outcome.record is not None
    assert dict(outcome.record.config) == to_fields(others[0])


def test_a_config_with_flaws_races_only_where_all_have_some(machines: tuple[Compiler, Checker]) -> None:
    default, *others = sorted(naive_configs(), key=lambda config: config != NAIVE.default(DECODING, GPU.arch))
    simulation = replace(CALM, times_us=timed_as([default, *others], [50.0, 40.0, *[45.0] * (len(others) - 1)]))
    with Store.open(":memory:") as store, Worker(simulation) as worker:
        evaluator = measurer(machines, worker)
        search_result = study.search(request(3), store, evaluator)
        spilled = [
            flawed(candidate) if candidate.instance.config != default else candidate
            for candidate in search_result.tried
        ]
        one, standing = final_race(replace(search_result, tried=tuple(spilled)), store, evaluator)
        every, _ = final_race(replace(search_result, tried=tuple(map(flawed, search_result.tried))), store, evaluator)
    assert standing is not None and len(standing.contenders) == 1
    assert one.record is not None and dict(one.record.config) == to_fields(default)
    assert every.record is not None and dict(every.record.config) != to_fields(default)


def flawed(candidate: study.Tried) -> study.Tried:
    """Had its kernel spilled."""
    assert candidate.attempt.resources is not None
    used = replace(candidate.attempt.resources, spill_bytes=8, lint=None)
    return replace(candidate, attempt=replace(candidate.attempt, resources=used))


def test_a_better_config_of_another_problem_is_raced_and_a_worse_one_is_not(machines: tuple[Compiler, Checker]) -> None:
    default = NAIVE.default(DECODING, GPU.arch)
    better, worse, *_ = (naive_config for naive_config in naive_configs() if naive_config != default)
    simulation = replace(CALM, times_us=timed_as([default, better, worse], [50.0, 30.0, 90.0]))
    with Store.open(":memory:") as store, Worker(simulation) as worker:
        session = Session(store, measured(GPU, machines[0], Setup(worker, POLICY)))
        result = session.search(request(1), lambda _: None, lambda: False)
        same = session.extend(result, [Instance(PAGED, NAIVE, DECODING, worse)], lambda _: None)
        raced = session.extend(same, [Instance(PAGED, NAIVE, DECODING, better)], lambda _: None)
    assert same.record == result.record
    assert raced.record is not None and raced.record.measurement is not None
    assert raced.record.config == to_fields(better)
    assert raced.record.measurement.flip_probability is not None


def seemed(candidate: study.Tried, time_us: float) -> study.Tried:
    """A measured config, had its samples said so, within 1 µs."""
    assert candidate.attempt.measurement is not None
    measurement = replace(candidate.attempt.measurement, time_us=time_us, low_us=time_us - 1, high_us=time_us + 1)
    return replace(candidate, attempt=replace(candidate.attempt, measurement=measurement))


def test_two_cores_are_left_to_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, compilers in ((16, 14), (3, 1), (1, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert compilers_beside_timing() == compilers


@pytest.mark.parametrize("retry", [False, True])
def test_a_ban_lasts_until_a_session_is_asked_to_try_again(
    machines: tuple[Compiler, Checker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, retry: bool
) -> None:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tuner.search.session.evidence_for", lambda _: Evidence.MEASURED)
    for _ in range(2):
        Ledger(tmp_path / "ledger" / GPU.name).began("a config")
    with Store.open(":memory:") as store, session(GPU, store, *machines, POLICY, retry=retry):
        assert Ledger(tmp_path / "ledger" / GPU.name).banned("a config") is not retry
