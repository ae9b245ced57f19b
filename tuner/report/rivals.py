"""The other implementations of a search: the best config of each, and why it lost by prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.report.standing import Delta, Entry, judged, losses, standing
from tuner.results.attempt import Attempt, Evidence
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Rival:
    """An implementation that did not win."""

    implementation: str
    best: Entry | None  # None: none of its configs succeeded
    deltas: tuple[Delta, ...]  # predicted terms in which its best config differs from the winner
    tried: int
    closed: str  # why the search gave it no more tries; empty if it did not

    @property
    def reason(self) -> str:
        """Return why it lost, in one line."""
        if self.best is None:
            return f"none of {self.tried} tries came through" if self.tried else "it was not tried"
        unit = "time" if self.best.attempt.measurement else "predicted cost"
        reasons = [f"its best takes {self.best.relative:.2f} × the {unit}", *self.best.flaws]
        prediction = self.best.attempt.prediction
        if prediction:
            reasons.append(f"{prediction.bottleneck} binds it")
        if self.deltas:
            terms = ", ".join(f"{delta.term} {delta.share:+.0%}" for delta in self.deltas)
            reasons.append(f"predicted terms against the winner's whole cost: {terms}")
        return "; ".join(reasons)


def rivals_of(
    attempts: Sequence[Attempt],
    verdicts: Mapping[int, Verdict],
    evidence: Evidence,
    record: TuningRecord | None,
    closed: Mapping[str, str],
) -> tuple[Rival, ...]:
    """Return the rivals in a search whose attempts are not ranked yet."""
    checked = judged(attempts, verdicts)
    return rivals(checked, standing(checked, evidence, record), closed)


def rivals(attempts: Sequence[Attempt], entries: Sequence[Entry], closed: Mapping[str, str]) -> tuple[Rival, ...]:
    """Return every implementation except the winner's, best first; `entries` are sorted by rank.

    `closed` maps all implementations in the search to the reason why it dropped them, or to an empty string.
    """
    if not entries:
        return ()
    losers = [name for name in closed if name != _name(entries[0].attempt)]
    rivals_by_value = [_rival(name, attempts, entries, closed[name]) for name in losers]
    return tuple(sorted(rivals_by_value, key=lambda rival: (rival.best is None, rival.best.rank if rival.best else 0)))


def _rival(name: str, attempts: Sequence[Attempt], entries: Sequence[Entry], closed: str) -> Rival:
    best = next((entry for entry in entries if _name(entry.attempt) == name), None)
    tried = sum(_name(attempt) == name for attempt in attempts)
    return Rival(name, best, losses(best, entries[0]) if best else (), tried, closed)


def _name(attempt: Attempt) -> str:
    return attempt.identity.implementation
