"""The table of `inventory.py`: where each implementation wins by prediction, and by how much, in Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from inventory_line import ORACLE, Line, margin

from tuner import arch

_LITTLE = 0.03  # a lead that no prediction can tell from none
_HEAD = ("implementation", "serves", "wins", "lead: median, most", "behind: least, median", "where it wins", "verdict")
_SHOWN = 5  # problems that a line names


@dataclass(frozen=True)
class Place:
    """How an implementation stands on one problem of one GPU."""

    line: Line
    lead: float  # over the next best, where it wins; what the winner is ahead of it, negative, where it does not
    alone: bool  # nobody else but the oracle serves the problem there

    @property
    def wins(self) -> bool:
        return self.lead >= 0


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Lines of Markdown: the table, and on which problems an implementation is the only one."""
    places = _places(lines)
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" * len(_HEAD) + "|"
    for name, found in places.items():
        yield _row(name, found)
    yield ""
    for name, found in places.items():
        if alone := [each for each in found if each.alone and not name.endswith(f"/{ORACLE}")]:
            yield f"- `{name}` is the only one beside `{ORACLE}`: {_where(alone)}"
        if name.endswith(f"/{ORACLE}") and (left := [each for each in found if len(each.line.standings) == 1]):
            yield f"- `{name}` is the only one: {_where(left)}"


def _places(lines: Sequence[Line]) -> dict[str, list[Place]]:
    """How every implementation stands wherever it serves, by name."""
    found: dict[str, list[Place]] = {}
    for line in sorted(lines, key=lambda each: each.operator):
        ranked = line.ranked()
        fast = [each for each in ranked if each.implementation != ORACLE]
        for each in sorted(ranked, key=lambda one: one.implementation):
            name = f"{line.operator}/{each.implementation}"
            rival = ranked[0] if each is not ranked[0] else ranked[1] if len(ranked) > 1 else None
            ahead = margin(each, rival) if rival and each is ranked[0] else 0.0
            lead = max(ahead, 0.0) if each is ranked[0] else min(-margin(ranked[0], each), -1e-9)
            found.setdefault(name, []).append(Place(line, lead, fast == [each]))
    return dict(sorted(found.items()))


def _row(name: str, places: Sequence[Place]) -> str:
    won = [each for each in places if each.wins]
    lost = [-each.lead for each in places if not each.wins]
    leads = [each.lead for each in won]
    lead = f"{median(leads):.0%}, {max(leads):.0%}" if won else ""
    behind = f"{min(lost):.1%}, {median(lost):.0%}" if lost else ""
    cells = (f"`{name}`", len(places), len(won), lead, behind, _where(won), _verdict(name, won))
    return f"| {' | '.join(map(str, cells))} |"


def _verdict(name: str, won: Sequence[Place]) -> str:
    if name.endswith(f"/{ORACLE}"):
        return "oracle"
    if not won:
        return "wins nowhere"
    return "wins" if any(each.alone or each.lead > _LITTLE for each in won) else f"within {_LITTLE:.0%}"


def _where(places: Sequence[Place]) -> str:
    """`all arches: decoding (9), 72 (3), …`: problems by the number of GPUs, and the arches."""
    if not places:
        return ""
    arches = list(dict.fromkeys(arch.gpu(each.line.gpu).arch for each in places))
    names = ", ".join(each.name for each in sorted(arches, key=lambda each: each.compute_capability))
    problems = [(len(list(found)), name) for name, found in groupby(sorted(each.line.problem for each in places))]
    most = sorted(problems, key=lambda each: (-each[0], each[1]))
    shown = "; ".join(f"{name} ({count})" for count, name in most[:_SHOWN])
    left = f"; {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
    return f"{names}: {shown}{left}"
