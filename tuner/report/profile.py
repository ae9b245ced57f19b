"""Predicted terms of the best configs, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.evaluate.predict.cost import TERMS
from tuner.report.standing import Entry, numbers


@dataclass(frozen=True, slots=True)
class Profile:
    """Predicted terms, the heaviest first, as shares of the winner's cost: one row an entry. They overlap in time, so
    that they do not add up to a cost."""

    terms: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    largest: float

    @property
    def meanings(self) -> dict[str, str]:
        """What the terms stand for, those that today's model has."""
        return {term: TERMS[term] for term in self.terms if term in TERMS}


def profile(entries: Sequence[Entry]) -> Profile | None:
    """Predicted terms of `entries` against the first one's cost; None where it has no prediction."""
    first = entries[0].attempt.prediction if entries else None
    if first is None or first.cost <= 0:
        return None
    found = [numbers(entry.attempt.prediction.terms) if entry.attempt.prediction else {} for entry in entries]
    peak = {name: max(terms.get(name, 0.0) for terms in found) for terms in found for name in terms}
    names = sorted((name for name in peak if peak[name] > 0), key=lambda name: -peak[name])
    rows = tuple(tuple(terms.get(name, 0.0) / first.cost for name in names) for terms in found)
    return Profile(tuple(names), rows, max((max(row) for row in rows if row), default=1.0)) if names else None
