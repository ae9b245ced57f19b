"""Who may become the record: the order of what works, which ties end simple, and the record of the winner."""

from collections.abc import Sequence
from datetime import UTC, datetime

from tuner import __version__
from tuner.results.attempt import Evidence
from tuner.results.record import TuningRecord
from tuner.search.log import Tried, ranked

_TIE = 0.001  # relative difference that nothing hangs on


def contest(tried: Sequence[Tried]) -> list[Tried]:
    """Best first; of those that tie with the best, the nearest to its default first.

    Where times were measured, the simplest config whose interval overlaps the best one's stands next: a final race
    has to tell the two apart.
    """
    found = ranked(tried)
    if not found:
        return found
    best = found[0]
    equal = [each for each in found if each is best or _equal(each, best)]
    taken = {each.row for each in equal}
    close = [each for each in found if each.row not in taken and ties(each, best) and each.differs < best.differs]
    front = sorted(equal, key=lambda each: each.differs) + sorted(close, key=lambda each: each.differs)[:1]
    taken = {each.row for each in front}
    return [*front, *(each for each in found if each.row not in taken)]


def ties(each: Tried, best: Tried) -> bool:
    """Whether nothing tells two configs apart: equal costs, or times whose intervals overlap."""
    a, b = each.attempt.measurement, best.attempt.measurement
    overlap = a is not None and b is not None and a.overlaps(b)
    return _equal(each, best) or (overlap and each.attempt.flawed <= best.attempt.flawed)


def _equal(each: Tried, best: Tried) -> bool:
    value, least = each.attempt.value, best.attempt.value
    return (
        value is not None
        and least is not None
        and value <= least * (1 + _TIE)
        and each.attempt.flawed <= best.attempt.flawed
    )


def passed(tried: Sequence[Tried], count: int | None = None) -> list[Tried]:
    """Of the first `count` of the contest (all, if None), those that passed their checks."""
    return [each for each in contest(tried)[:count] if each.right]


def record_of(right: Sequence[Tried], evidence: Evidence, tried: int) -> TuningRecord:
    """The record of the first of `right`, which passed their checks; the second is the runner-up."""
    attempt, verdict = right[0].attempt, right[0].verdict
    assert verdict is not None and attempt.resources is not None
    return TuningRecord(
        identity=attempt.identity,
        config=attempt.config,
        evidence=evidence,
        verdict=verdict,
        resources=attempt.resources,
        prediction=attempt.prediction,
        measurement=attempt.measurement,
        margin=_margin(right),
        tried=tried,
        tuner=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _margin(right: Sequence[Tried]) -> float:
    """How far the runner-up is behind the winner; 0 where there is none, or where they tie."""
    values = [each.attempt.value for each in right[:2] if each.attempt.value is not None]
    return max(values[1] / values[0] - 1, 0.0) if len(values) == 2 else 0.0
