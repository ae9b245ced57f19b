"""The end of a measured search: finalists, default and previous winner race, and the race's winner is the record."""

from collections.abc import Sequence
from dataclasses import replace

from tuner.base.fields import Fields
from tuner.evaluate.evaluator import Evaluator, Finalists, RaceOutcome
from tuner.evaluate.measure.final import Standing
from tuner.results.attempt import Attempt, Evidence
from tuner.results.final_race import FinalRace, Runner
from tuner.results.ranking import FINALISTS, RACE_BAND, passed, race_order, rank, within
from tuner.search.study import Outcome, Tried, record_of
from tuner.spec.problem import to_fields
from tuner.store.sql import Store


def final_race(outcome: Outcome, store: Store, evaluator: Evaluator) -> tuple[Outcome, Standing | None]:
    """Race the best of a measured search and promote the winner. The outcome with its record, and how the race ended.

    Without a race (costs were predicted, nothing passed its checks, or the device failed for all) the outcome is
    returned as it is.
    """
    finalists = _finalists(outcome, store, evaluator) if evaluator.evidence is Evidence.MEASURED else []
    if not finalists:
        return outcome, None
    default = _tried(outcome, *_default(outcome))
    entries = Finalists(
        tuple(candidate.instance for candidate in finalists),
        tuple(map(race_order, finalists)),
        next((i for i, candidate in enumerate(finalists) if default and candidate.row == default.row), None),
    )
    race = evaluator.settle(entries, outcome.request.seed)
    if race is None:
        return outcome, None
    entrants = [finalists[i] for i in race.entrants]
    stored = _stored(race, entrants)
    store.append_race(stored)
    record = record_of([entrants[race.standing.winner]], Evidence.MEASURED, len(outcome.tried))
    record = replace(record, measurement=race.measurement, margin=race.margin)
    store.promote(record)
    return replace(outcome, record=record, final=stored), race.standing


def _stored(race: RaceOutcome, entrants: Sequence[Tried]) -> FinalRace:
    winner = entrants[race.standing.winner].attempt.identity
    return FinalRace(
        winner.operator,
        winner.problem,
        winner.gpu,
        winner.policy,
        tuple(_runner(candidate.attempt) for candidate in entrants),
        race.standing.winner,
        race.rounds,
        race.own_clock,
        race.floor_us,
        race.voided,
    )


def _runner(attempt: Attempt) -> Runner:
    return Runner(attempt.identity.implementation, attempt.config, attempt.identity.source)


def _finalists(outcome: Outcome, store: Store, evaluator: Evaluator) -> list[Tried]:
    """The configs that race: right, of this search, and near the best; the default and the last record's always."""
    right = passed(outcome.tried)
    if not right:
        return []
    near = within(RACE_BAND, right[:FINALISTS], right[0])
    always = [_tried(outcome, *_default(outcome)), _tried(outcome, *_previous(outcome, store))]
    wanted = [*always, *_misjudged(outcome, right[0], near, evaluator)]
    missing = [candidate for candidate in wanted if candidate and all(candidate.row != other.row for other in near)]
    verdicts = dict(evaluator.check([candidate.instance for candidate in missing]))
    checked = [replace(candidate, verdict=verdicts[i]) for i, candidate in enumerate(missing)]
    distinct = {candidate.row: candidate for candidate in (*near, *checked) if candidate.right}
    return list(distinct.values())


def _misjudged(outcome: Outcome, best: Tried, near: Sequence[Tried], evaluator: Evaluator) -> list[Tried]:
    """Configs that screening may have put too far behind: a drift too small to be noticed explains their distance.

    Times of another day, or from before the device changed its pace, do not compare with those since: where such
    configs are near the best, the best since then race too.
    """
    ranked = rank(outcome.tried)
    alike = within(1 + evaluator.drift, ranked[: 2 * FINALISTS], best)
    since = [
        candidate
        for candidate in ranked
        if evaluator.is_current(candidate.attempt) and candidate.attempt.flawed <= best.attempt.flawed
    ]
    if all(evaluator.is_current(candidate.attempt) for candidate in near) or not since:
        return alike
    return [*alike, *within(RACE_BAND, since[:FINALISTS], since[0])]


def _tried(outcome: Outcome, implementation: str, config: Fields) -> Tried | None:
    """The attempt at a config in this search, if it came through."""
    for candidate in outcome.tried:
        same = candidate.instance.implementation.name == implementation and dict(candidate.attempt.config) == dict(
            config
        )
        if same and candidate.attempt.value is not None:
            return candidate
    return None


def _default(outcome: Outcome) -> tuple[str, Fields]:
    """What runs where nothing was tuned, an oracle where there is no other: (implementation, config)."""
    arms = sorted(outcome.bandit.arms.values(), key=lambda arm: arm.implementation.oracle)
    return arms[0].implementation.name, to_fields(arms[0].default.config)


def _previous(outcome: Outcome, store: Store) -> tuple[str, Fields]:
    """The measured record before this search's own."""
    assert outcome.record is not None, "a search that found something right has a record"
    key = outcome.record.identity
    for record in store.all_records(key.operator, key.problem, key.gpu):
        if record.evidence is Evidence.MEASURED and record != outcome.record:
            return record.identity.implementation, record.config
    return "", {}
