"""The end of a measured search: finalists, default and previous winner race, and the winner becomes the record."""

from collections.abc import Sequence
from dataclasses import replace

from tuner.base.fields import Fields
from tuner.evaluate.evaluator import Evaluator, Finalists, RaceOutcome
from tuner.evaluate.measure.race_timing import Standing
from tuner.results.attempt import Attempt, Evidence
from tuner.results.final_race import FinalRace, Runner
from tuner.results.ranking import FINALISTS, RACE_BAND, passed, race_order, rank, within
from tuner.search.study import Outcome, Tried, record_of
from tuner.spec.problem import to_fields
from tuner.store.sql import Store


def final_race(outcome: Outcome, store: Store, evaluator: Evaluator) -> tuple[Outcome, Standing | None]:
    """Race the best configs of a measured search and promote the winner; return the outcome and the standing.

    Without a race (costs were predicted, nothing passed its checks, or the device failed for all), the outcome is
    returned unchanged.
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
    """Return the finalists: correct configs of this search near the best, plus the default and the previous record's
    config.
    """
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
    """Return configs that an undetected drift may have placed too far behind during screening.

    Times from another day, or from before a change of the device's speed, are not comparable with later ones: if such
    configs are near the best, the best later configs race as well.
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
    """Return the attempt at a config in this search, if it succeeded."""
    for candidate in outcome.tried:
        same = candidate.instance.implementation.name == implementation and dict(candidate.attempt.config) == dict(
            config
        )
        if same and candidate.attempt.value is not None:
            return candidate
    return None


def _default(outcome: Outcome) -> tuple[str, Fields]:
    """Return (implementation, config) of the default, that of an oracle if there is no other implementation."""
    arms = sorted(outcome.bandit.arms.values(), key=lambda arm: arm.implementation.oracle)
    return arms[0].implementation.name, to_fields(arms[0].default.config)


def _previous(outcome: Outcome, store: Store) -> tuple[str, Fields]:
    """Return the measured record from before this search."""
    assert outcome.record is not None, "a search with a correct config has a record"
    key = outcome.record.identity
    for record in store.all_records(key.operator, key.problem, key.gpu):
        if record.evidence is Evidence.MEASURED and record != outcome.record:
            return record.identity.implementation, record.config
    return "", {}
