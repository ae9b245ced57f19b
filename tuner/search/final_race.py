"""The end of a measured search: finalists, default and previous winner race, and the race's winner is the record."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.base.canonical import encode
from tuner.evaluate.measure.final import Rules, Standing, decide
from tuner.evaluate.measure.messages import RaceResult
from tuner.evaluate.measure.samples import Sample
from tuner.evaluate.measurer import Measurer, measurement
from tuner.results.attempt import Attempt, Evidence
from tuner.results.final_race import FinalRace, Lap, Runner
from tuner.results.ranking import order
from tuner.results.record import TuningRecord
from tuner.search.contest import passed, record_of
from tuner.search.study import FINALISTS, Outcome, Tried, ranked
from tuner.spec.problem import to_fields
from tuner.store.sql import Store

_LEAST_ROUNDS = 3  # at own clocks, or those at one clock decide
_WITHIN = 1.25  # of the best: what is further behind when it is screened does not race


def final_race(outcome: Outcome, store: Store, measurer: Measurer, seed: int = 0) -> tuple[Outcome, Standing | None]:
    """Race the best of a measured search and promote the winner. The outcome with its record, and how the race ended.

    Without a race (nothing right was found, or the device failed for all) the outcome is returned as it is.
    """
    run = _raced(_field(outcome, store, measurer), outcome, measurer, seed)
    if run is None:
        return outcome, None
    race = _told(run, measurer)
    store.append_race(race)
    record = _record(run, len(outcome.tried))
    store.promote(record)
    return replace(outcome, record=record, final=race), run.standing


@dataclass(frozen=True)
class _Run:
    """A race that was run: who came through, the rounds, and how it ended."""

    field: list[Tried]
    raced: RaceResult
    standing: Standing
    own_clock: bool


def _raced(
    field: list[Tried], outcome: Outcome, measurer: Measurer, seed: int, *, own_clock: bool = False
) -> _Run | None:
    """None where nobody came through.

    In turns all run at one clock. Where one of them draws so much that it would lower its own, those that are near and
    the default race again, each at its own clock: so they run where nothing else does, and what a kernel draws is what
    it takes from its neighbours where power is short.
    """
    left, raced = measurer.race([each.instance for each in field], seed, own_clock=own_clock) if field else ([], None)
    if raced is None or not raced.rounds:
        return None
    field = [field[i] for i in left]
    policy, default = measurer.setup.policy, _default(field, outcome)
    rules = Rules(tuple(map(_key, field)), default, policy.tie, raced.floor_us)
    standing = decide(raced.times_us, rules, seed)
    near = [i for i, each in enumerate(standing.contenders) if each.ratio.low <= 1 + policy.drift or i == default]
    if raced.capped and not own_clock and len(near) > 1:
        again = _raced([field[i] for i in near], outcome, measurer, seed, own_clock=True)
        if again and len(again.raced.rounds) >= _LEAST_ROUNDS:
            return again
    return _Run(field, raced, standing, own_clock)


def _told(run: _Run, measurer: Measurer) -> FinalRace:
    """The race as it is stored."""
    key = run.field[run.standing.winner].attempt.identity
    return FinalRace(
        key.operator,
        key.problem,
        key.gpu,
        key.policy,
        tuple(_runner(each.attempt) for each in run.field),
        run.standing.winner,
        tuple(tuple(_lap(sample) for sample in each) for each in run.raced.rounds),
        run.own_clock,
        run.raced.floor_us,
        measurer.drift.voided,
    )


def _runner(attempt: Attempt) -> Runner:
    return Runner(attempt.identity.implementation, attempt.config, attempt.identity.source)


def _lap(sample: Sample) -> Lap:
    state = sample.state
    return Lap(sample.time_us, state.sm_mhz, state.throttle, state.temperature_c, state.late)


def _field(outcome: Outcome, store: Store, measurer: Measurer) -> list[Tried]:
    """Who races: right, of this search, and near the best; the default and the last record's config in any case."""
    right = passed(outcome.tried)
    if not right:
        return []
    near = _within(_WITHIN, right[:FINALISTS], right[0])
    wanted = [_found(outcome, *spelled) for spelled in (_default_config(outcome), _previous(outcome, store))]
    wanted += _misjudged(outcome, right[0], near, measurer)
    missing = [each for each in wanted if each and all(each.row != other.row for other in near)]
    verdicts = dict(measurer.verdicts([each.instance for each in missing]))
    judged = [replace(each, verdict=verdicts[i]) for i, each in enumerate(missing)]
    distinct = {each.row: each for each in (*near, *judged) if each.right}
    return list(distinct.values())


def _misjudged(outcome: Outcome, best: Tried, near: Sequence[Tried], measurer: Measurer) -> list[Tried]:
    """Whom screening may have put too far behind: those that a drift too small to be noticed explains.

    And times of another day, or from before a change that one saw, do not compare with those since: where some that are
    near the best are of then, the best since.
    """
    found = ranked(outcome.tried)
    alike = _within(1 + measurer.setup.policy.drift, found[: 2 * FINALISTS], best)
    since = [each for each in found if measurer.is_current(each.attempt) and each.attempt.flawed <= best.attempt.flawed]
    if all(measurer.is_current(each.attempt) for each in near) or not since:
        return alike
    return [*alike, *_within(_WITHIN, since[:FINALISTS], since[0])]


def _within(factor: float, tried: Sequence[Tried], best: Tried) -> list[Tried]:
    """Those that take at most so many times as long as the best; none with flaws, unless that has some."""
    most = factor * (best.attempt.value or 0.0)
    return [
        each for each in tried if (each.attempt.value or 0.0) <= most and each.attempt.flawed <= best.attempt.flawed
    ]


def _found(outcome: Outcome, implementation: str, config: str) -> Tried | None:
    """The attempt at a config in this search, if it came through."""
    for each in outcome.tried:
        same = each.instance.implementation.name == implementation and encode(each.attempt.config) == config
        if same and each.attempt.value is not None:
            return each
    return None


def _default_config(outcome: Outcome) -> tuple[str, str]:
    """What runs where nothing was tuned, an oracle where there is no other: (implementation, config as JSON)."""
    arms = sorted(outcome.bandit.arms.values(), key=lambda each: each.implementation.oracle)
    first = arms[0].implementation
    return first.name, encode(to_fields(outcome.request.default(first).config))


def _previous(outcome: Outcome, store: Store) -> tuple[str, str]:
    """The measured record before this search's own."""
    assert outcome.record is not None, "a search that found something right has a record"
    key = outcome.record.identity
    for record in store.all_records(key.operator, key.problem, key.gpu):
        if record.evidence is Evidence.MEASURED and record != outcome.record:
            return record.identity.implementation, encode(record.config)
    return "", ""


def _default(field: Sequence[Tried], outcome: Outcome) -> int | None:
    found = _found(outcome, *_default_config(outcome))
    rows = [each.row for each in field]
    return rows.index(found.row) if found and found.row in rows else None


def _key(tried: Tried) -> tuple[Any, ...]:
    """Of equally fast kernels, the one without flaws, nearest to its default, that takes least; then any order."""
    used = tried.attempt.resources
    assert used is not None, "what was measured was compiled"
    flawed, _, smem_bytes, name = order(tried.attempt, 0.0)
    return flawed, tried.differs, smem_bytes, used.registers * used.threads, name


def _record(run: _Run, tried: int) -> TuningRecord:
    """The winner's, with its time and margin in the race in place of those that it had when it was screened."""
    standing, winner = run.standing, run.standing.winner
    ratios = [each.ratio.mid for i, each in enumerate(standing.contenders) if i != winner]
    raced = replace(
        measurement(standing.contenders[winner].time_us, [each[winner].state for each in run.raced.rounds]),
        regret_bound=standing.regret_bound,
        flip_probability=standing.flip_probability,
        floor_us=run.raced.floor_us,
    )
    record = record_of([run.field[winner]], Evidence.MEASURED, tried)
    return replace(record, measurement=raced, margin=min(ratios, default=1.0) - 1)
