"""Common parts of a problem's figures: the axis of values, and the links and labels of marks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.report import vega
from tuner.report.notation import microseconds, times
from tuner.report.section import Section
from tuner.report.standing import Entry

CEILING = 4.0  # values above this multiple of the best are drawn at the edge, so that they do not flatten the others


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of times in µs, or of predicted costs relative to the winner's, since absolute costs have no meaning."""

    unit: float
    best: float
    ceiling: float
    title: str
    suffix: str

    def of(self, value: float) -> float:
        return value / self.unit

    def at(self, value: float) -> float:
        return min(self.of(value), self.ceiling)

    def share(self, value: float) -> float:
        """Return the position of a value between the ceiling (0) and the best (1), as `channel` without a margin draws
        it.
        """
        if self.best <= 0:
            return (self.ceiling - self.at(value)) / (self.ceiling - self.best)
        return math.log(self.ceiling / self.at(value)) / math.log(self.ceiling / self.best)

    def channel(self, room: float = 1.0, *, reverse: bool = False, **axis: object) -> dict[str, Any]:
        domain = vega.scale(self.best / room, self.ceiling * room, reverse=reverse)
        spelled = {"labelExpr": f"format(datum.value, '.4~g') + '{self.suffix}'"}
        return vega.quantity("value", title=self.title, scale=domain, axis=vega.ABOVE | spelled | axis)


def axis(section: Section, entries: Sequence[Entry]) -> Axis:
    """Return the axis from the best of `entries` to the ceiling."""
    winner = section.entries[0].value
    relative = not section.measured and winner > 0
    unit = winner if relative else 1.0
    values = [entry.value / unit for entry in entries]
    best, worst = min(values), max(values)
    ceiling = max(min(worst, CEILING * best) if best > 0 else worst, best + (abs(best) or 1.0) / 50)
    what = "relative cost" if relative else "time, µs" if section.measured else "cost"
    return Axis(unit, best, ceiling, f"{what} ({section.data.evidence.value})", "×" if relative else "")


def named(section: Section, entry: Entry) -> dict[str, Any]:
    """Return the link and the label of an entry's mark."""
    value = f"{microseconds(entry.value)} µs" if section.measured else times(entry.relative)
    return {"row": row(section, entry.index), "label": f"try {entry.index + 1}, rank {entry.rank}: {value}"}


def row(section: Section, index: int) -> str:
    """Return a link to an attempt's row in the table of all attempts."""
    return f"#{section.id}-try-{index + 1}"
