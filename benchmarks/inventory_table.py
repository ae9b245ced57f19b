"""The table of `inventory.py` in Markdown: where each implementation is predicted to win, and by how much."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from inventory_line import Line, margin

from tuner import arch

_LITTLE = 0.03  # a lead below the accuracy of predictions
_HEAD = (
    "implementation",
    "serves",
    "wins",
    "of these compiled",
    "lead: median, most",
    "behind elsewhere: least, median",
    "where it wins",
    "verdict",
)
_SHOWN = 4  # number of problems per line


@dataclass(frozen=True)
class Place:
    """The standing of an implementation on one problem and GPU."""

    line: Line
    first: bool  # it wins
    margin: float  # relative to the next best if it wins, and to the winner otherwise
    compiled: bool  # whether the margin is based on the machine code of both
    alone: bool  # only the oracle also serves the problem
    oracle: bool


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Yield lines of Markdown: the table, and the problems that only one implementation serves."""
    places = _places(lines)
    arches = _arches(place for group in places.values() for place in group)
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" * len(_HEAD) + "|"
    for name, places_of_name in places.items():
        yield _oracle(name, places_of_name) if places_of_name[0].oracle else _row(name, places_of_name, arches)
    yield ""
    for name, places_of_name in places.items():
        if places_of_name[0].oracle and (left := [place for place in places_of_name if len(place.line.standings) == 1]):
            yield f"- only `{name}`: {_where(left, arches)}"
        elif alone := [place for place in places_of_name if place.alone]:
            yield f"- only `{name}` beside the oracle: {_where(alone, arches)}"


def _places(lines: Sequence[Line]) -> dict[str, list[Place]]:
    """Return the standings of every implementation on the problems it serves, by name."""
    by_name: dict[str, list[Place]] = {}
    for line in lines:
        best, *others = line.ranked()
        fast = [standing for standing in line.standings if not standing.oracle]
        for standing in line.standings:
            rival = best if standing is not best else others[0] if others else standing
            lead = margin(best, rival if standing is best else standing)
            compiled = bool(standing.compiled and rival.compiled)
            row = Place(line, standing is best, max(lead, 0.0), compiled, fast == [standing], standing.oracle)
            by_name.setdefault(f"{line.operator}/{standing.implementation}", []).append(row)
    return dict(sorted(by_name.items()))


def _oracle(name: str, places: Sequence[Place]) -> str:
    return f"| `{name}` | {len(places)} |" + " |" * (len(_HEAD) - 3) + " oracle |"


def _row(name: str, places: Sequence[Place], arches: Sequence[str]) -> str:
    won, lost = [place for place in places if place.first], [place.margin for place in places if not place.first]
    leads = [place.margin for place in won]
    cells = (
        f"`{name}`",
        len(places),
        len(won),
        sum(place.compiled for place in won),
        f"{_percent(median(leads))}, {_percent(max(leads))}" if won else "",
        f"{_percent(min(lost))}, {_percent(median(lost))}" if lost else "",
        _where(won, arches),
        _verdict(won),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _percent(share: float) -> str:
    """Format a share as `7 %`, or a large one as `× 12`."""
    if share >= 2:
        return f"× {1 + share:.3g}"
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _verdict(won: Sequence[Place]) -> str:
    if not won:
        return "wins nowhere"
    return "wins" if any(place.alone or place.margin > _LITTLE for place in won) else f"within {_LITTLE:.0%}"


def _where(places: Sequence[Place], every: Sequence[str]) -> str:
    """Format places as `everywhere: decoding (10), 72 (3), …`: architectures, and problems by number of GPUs."""
    if not places:
        return ""
    arches = _arches(places)
    at = "everywhere" if arches == every else "sm_" + ", ".join(name.removeprefix("sm_") for name in arches)
    problems = [(len(list(group)), name) for name, group in groupby(sorted(place.line.problem for place in places))]
    most = sorted(problems, key=lambda item: (-item[0], item[1]))
    shown = "; ".join(f"{name} ({count})" for count, name in most[:_SHOWN])
    left = f"; {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
    return f"{at}: {shown}{left}"


def _arches(places: Iterable[Place]) -> list[str]:
    """Return the architectures, oldest first."""
    arches = {arch.gpu(place.line.gpu).arch for place in places}
    return [arch.name for arch in sorted(arches, key=lambda arch: arch.compute_capability)]
