"""The order of attempts, the tolerance within which two of them tie, and every tie-break."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from tuner.base.canonical_json import encode
from tuner.results.attempt import Attempt
from tuner.results.verdict import Verdict

SAME_VALUE = 0.001  # relative; rounding changes a cost by less, and users do not notice a smaller gain
SAME_TIME = 0.01  # relative, in a race; about the run-to-run variation of a busy GPU's clock
RACE_BAND = 1.25  # × the best screened time; screening tolerates a drift of 5 %, so this leaves a margin
FINALISTS = 8  # number of configs to check; no config further down the list has ever won a race

Order = tuple[bool, float, int, str]


class Candidate(Protocol):
    """A tuning attempt that can be ranked."""

    @property
    def row(self) -> int: ...
    @property
    def attempt(self) -> Attempt: ...
    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def differs(self) -> int:
        """Number of parameters that differ from the default config."""


C = TypeVar("C", bound=Candidate)


def order(attempt: Attempt, value: float | None = None) -> Order:
    """Return the sort key of successful attempts, best first.

    Attempts with flaws, such as spills, come last. Less shared memory breaks ties. `value` overrides the attempt's own
    value.
    """
    smem_bytes = attempt.resources.smem_bytes if attempt.resources else 0
    value = attempt.value or 0.0 if value is None else value
    return attempt.flawed, value, smem_bytes, attempt.identity.implementation + encode(attempt.config)


def race_order(candidate: Candidate) -> tuple[Any, ...]:
    """Return the sort key of equally fast kernels.

    The order is: no flaws, fewest parameters that differ from the default, least shared memory, fewest registers, name.
    """
    resources = candidate.attempt.resources
    assert resources is not None, "a measured config has been compiled"
    flawed, _, smem_bytes, name = order(candidate.attempt, 0.0)
    return flawed, candidate.differs, smem_bytes, resources.registers * resources.threads, name


def rank(candidates: Sequence[C]) -> list[C]:
    """Return the candidates that succeeded and did not fail a check, sorted by `order`.

    Configs with equal machine code and launches count once: the one that passed its checks represents them, or else the
    one closest to the default.
    """
    distinct: dict[object, C] = {}
    for candidate in sorted(candidates, key=lambda candidate: (not _passed(candidate), candidate.differs)):
        resources = candidate.attempt.resources
        if candidate.attempt.value is not None and resources is not None and not _failed(candidate):
            distinct.setdefault((resources.sass_digest, candidate.attempt.identity.plan), candidate)
    return sorted(distinct.values(), key=lambda candidate: order(candidate.attempt))


def rank_candidates(candidates: Sequence[C]) -> list[C]:
    """Return `rank`, with the config closest to its default first among those that tie with the best.

    If times were measured, the simplest config whose interval overlaps the best one's comes second, because a final
    race has to distinguish the two.
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
    """Return those of the first `count` (None: all) of `rank_candidates` that passed their checks."""
    return [candidate for candidate in rank_candidates(candidates)[:count] if _passed(candidate)]


def ties(candidate: Candidate, best: Candidate) -> bool:
    """Return whether two configs are indistinguishable: equal costs, or measured times with overlapping intervals."""
    a, b = candidate.attempt.measurement, best.attempt.measurement
    overlap = a is not None and b is not None and a.overlaps(b)
    return _equal(candidate, best) or (overlap and candidate.attempt.flawed <= best.attempt.flawed)


def within(factor: float, candidates: Sequence[C], best: Candidate) -> list[C]:
    """Return the candidates with at most `factor` × the best value; none with flaws, unless the best has some."""
    limit = factor * (best.attempt.value or 0.0)
    return [
        candidate
        for candidate in candidates
        if (candidate.attempt.value or 0.0) <= limit and candidate.attempt.flawed <= best.attempt.flawed
    ]


def regret(candidate: Candidate, best: Candidate) -> float:
    """Return by which fraction a config's value exceeds the best one's, at least 0; inf if the config may not be
    served.
    """
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
