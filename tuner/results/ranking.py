"""Every order of attempts, every band within which two count as equal, and every rule that breaks a tie."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from tuner.base.canonical import encode
from tuner.results.attempt import Attempt
from tuner.results.verdict import Verdict

SAME_VALUE = 0.001  # relative: rounding of the model's terms moves a cost by less, and no user notices such a gain
SAME_TIME = 0.01  # relative, in a race: about what the clock of a busy GPU wanders by from run to run
RACE_BAND = 1.25  # × the best screened time: screening errs by the drift that it tolerates (5 %), which leaves room
FINALISTS = 8  # configs that are checked; further down the list nothing has won a race

Order = tuple[bool, float, int, str]


class Candidate(Protocol):
    """An attempt with its place among others."""

    @property
    def row(self) -> int: ...
    @property
    def attempt(self) -> Attempt: ...
    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def differs(self) -> int:
        """Parameters of its config that are not the default."""


C = TypeVar("C", bound=Candidate)


def order(attempt: Attempt, value: float | None = None) -> Order:
    """The sort key of attempts that work, best first: attempts with flaws, such as spills, come last, and the least
    shared memory breaks ties.

    `value` stands in for the attempt's own where it is given.
    """
    smem_bytes = attempt.resources.smem_bytes if attempt.resources else 0
    value = attempt.value or 0.0 if value is None else value
    return attempt.flawed, value, smem_bytes, attempt.identity.implementation + encode(attempt.config)


def race_order(candidate: Candidate) -> tuple[Any, ...]:
    """The sort key of equally fast kernels: no flaws, the fewest parameters that differ from the default, then the
    least shared memory and registers; the name decides between the rest.
    """
    resources = candidate.attempt.resources
    assert resources is not None, "what was measured was compiled"
    flawed, _, smem_bytes, name = order(candidate.attempt, 0.0)
    return flawed, candidate.differs, smem_bytes, resources.registers * resources.threads, name


def rank(candidates: Sequence[C]) -> list[C]:
    """The candidates that work and were not found wrong, by `order`.

    Configs with equal machine code and launches count once: the one that passed its checks stands for all of them,
    else the nearest to the default.
    """
    distinct: dict[object, C] = {}
    for candidate in sorted(candidates, key=lambda candidate: (not _passed(candidate), candidate.differs)):
        resources = candidate.attempt.resources
        if candidate.attempt.value is not None and resources is not None and not _failed(candidate):
            distinct.setdefault((resources.sass_digest, candidate.attempt.identity.plan), candidate)
    return sorted(distinct.values(), key=lambda candidate: order(candidate.attempt))


def rank_candidates(candidates: Sequence[C]) -> list[C]:
    """`rank`, with ties to the best broken: of those, the nearest to its default comes first.

    Where times were measured, the simplest config whose interval overlaps the best one's comes next: a final race has
    to tell the two apart.
    """
    ranked = rank(candidates)
    if not ranked:
        return ranked
    best = ranked[0]
    equal = [candidate for candidate in ranked if candidate is best or _equal(candidate, best)]
    rows = {candidate.row for candidate in equal}
    close = [
        candidate
        for candidate in ranked
        if candidate.row not in rows and ties(candidate, best) and candidate.differs < best.differs
    ]
    front = (
        sorted(equal, key=lambda candidate: candidate.differs)
        + sorted(close, key=lambda candidate: candidate.differs)[:1]
    )
    rows = {candidate.row for candidate in front}
    return [*front, *(candidate for candidate in ranked if candidate.row not in rows)]


def passed(candidates: Sequence[C], count: int | None = None) -> list[C]:
    """Of the first `count` of `rank_candidates` (all, if None), those that passed their checks."""
    return [candidate for candidate in rank_candidates(candidates)[:count] if _passed(candidate)]


def ties(candidate: Candidate, best: Candidate) -> bool:
    """Whether two configs cannot be told apart: equal costs, or measured times whose intervals overlap."""
    a, b = candidate.attempt.measurement, best.attempt.measurement
    overlap = a is not None and b is not None and a.overlaps(b)
    return _equal(candidate, best) or (overlap and candidate.attempt.flawed <= best.attempt.flawed)


def within(factor: float, candidates: Sequence[C], best: Candidate) -> list[C]:
    """Candidates whose value is at most `factor` × that of the best; none with flaws, unless the best has some."""
    limit = factor * (best.attempt.value or 0.0)
    return [
        candidate
        for candidate in candidates
        if (candidate.attempt.value or 0.0) <= limit and candidate.attempt.flawed <= best.attempt.flawed
    ]


def regret(candidate: Candidate, best: Candidate) -> float:
    """The share by which a config's value exceeds the best one's, at least 0; inf where the config may not serve."""
    value, least = candidate.attempt.value, best.attempt.value
    if value is None or least is None or _failed(candidate) or candidate.attempt.flawed > best.attempt.flawed:
        return float("inf")
    return max(0.0, value / least - 1)


def _equal(candidate: Candidate, best: Candidate) -> bool:
    value, least = candidate.attempt.value, best.attempt.value
    if value is None or least is None or candidate.attempt.flawed > best.attempt.flawed:
        return False
    return value <= least * (1 + SAME_VALUE)


def _passed(candidate: Candidate) -> bool:
    return candidate.verdict is not None and candidate.verdict.ok


def _failed(candidate: Candidate) -> bool:
    return candidate.verdict is not None and not candidate.verdict.ok
