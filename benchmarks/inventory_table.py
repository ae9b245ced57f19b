"""The table of `inventory.py`: where each implementation wins by prediction, and by how much, in Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from inventory_line import Line, margin

from tuner import arch

_LITTLE = 0.03  # a lead that no prediction can tell from none
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
_SHOWN = 4  # problems that a line names


@dataclass(frozen=True)
class Place:
    """How an implementation stands on one problem of one GPU."""

    line: Line
    first: bool  # it wins there
    margin: float  # over the next best where it wins; that of the winner where it does not
    compiled: bool  # that is by the machine code of both
    alone: bool  # nobody else but the oracle serves the problem there
    oracle: bool


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Lines of Markdown: the table, and on which problems an implementation is the only one."""
    places = _places(lines)
    arches = _arches(each for found in places.values() for each in found)
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" * len(_HEAD) + "|"
    for name, found in places.items():
        yield _oracle(name, found) if found[0].oracle else _row(name, found, arches)
    yield ""
    for name, found in places.items():
        if found[0].oracle and (left := [each for each in found if len(each.line.standings) == 1]):
            yield f"- only `{name}`: {_where(left, arches)}"
        elif alone := [each for each in found if each.alone]:
            yield f"- only `{name}` beside the oracle: {_where(alone, arches)}"


def _places(lines: Sequence[Line]) -> dict[str, list[Place]]:
    """How every implementation stands wherever it serves, by name."""
    found: dict[str, list[Place]] = {}
    for line in lines:
        best, *others = line.ranked()
        fast = [each for each in line.standings if not each.oracle]
        for each in line.standings:
            rival = best if each is not best else others[0] if others else each
            lead = margin(best, rival if each is best else each)
            compiled = bool(each.compiled and rival.compiled)
            place = Place(line, each is best, max(lead, 0.0), compiled, fast == [each], each.oracle)
            found.setdefault(f"{line.operator}/{each.implementation}", []).append(place)
    return dict(sorted(found.items()))


def _oracle(name: str, places: Sequence[Place]) -> str:
    return f"| `{name}` | {len(places)} |" + " |" * (len(_HEAD) - 3) + " oracle |"


def _row(name: str, places: Sequence[Place], arches: Sequence[str]) -> str:
    won, lost = [each for each in places if each.first], [each.margin for each in places if not each.first]
    leads = [each.margin for each in won]
    cells = (
        f"`{name}`",
        len(places),
        len(won),
        sum(each.compiled for each in won),
        f"{_percent(median(leads))}, {_percent(max(leads))}" if won else "",
        f"{_percent(min(lost))}, {_percent(median(lost))}" if lost else "",
        _where(won, arches),
        _verdict(won),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _percent(found: float) -> str:
    """`7 %`, and of what is many times as much `× 12`."""
    if found >= 2:
        return f"× {1 + found:.3g}"
    return f"{found:.1%}" if found < 0.1 else f"{found:.0%}"


def _verdict(won: Sequence[Place]) -> str:
    if not won:
        return "wins nowhere"
    return "wins" if any(each.alone or each.margin > _LITTLE for each in won) else f"within {_LITTLE:.0%}"


def _where(places: Sequence[Place], every: Sequence[str]) -> str:
    """`everywhere: decoding (10), 72 (3), …`: architectures, and problems by the number of GPUs."""
    if not places:
        return ""
    arches = _arches(places)
    at = "everywhere" if arches == every else "sm_" + ", ".join(name.removeprefix("sm_") for name in arches)
    problems = [(len(list(found)), name) for name, found in groupby(sorted(each.line.problem for each in places))]
    most = sorted(problems, key=lambda each: (-each[0], each[1]))
    shown = "; ".join(f"{name} ({count})" for count, name in most[:_SHOWN])
    left = f"; {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
    return f"{at}: {shown}{left}"


def _arches(places: Iterable[Place]) -> list[str]:
    """Their architectures, the oldest first."""
    found = {arch.gpu(each.line.gpu).arch for each in places}
    return [each.name for each in sorted(found, key=lambda each: each.compute_capability)]
