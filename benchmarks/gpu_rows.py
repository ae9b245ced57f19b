"""The rows of a run of `gpu.py`: a line when a step begins, one for each thing that it finds, and one when it ends.

Whoever reads them has all that was known when the run ended, however it did.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner import bench
from tuner.base import journal
from tuner.base.journal import Journal

NAME = "rows.jsonl"
_BEGINS, _FINDS, _ENDS, _REOPENS = "begins", "finds", "ends", "reopens"
Row = Mapping[str, Any]


class Rows:
    """The file of a run, and what it says of each step. Every row is on the disk before anything else happens."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._journal = Journal(self.path)
        self.steps = read(folder)

    def begin(self, step: str, may_take_s: float, details: Mapping[str, Any]) -> None:
        self._journal.append({_BEGINS: step, "may_take_s": round(may_take_s, 1), **details})

    def find(self, step: str, result: Mapping[str, Any]) -> None:
        """Something of a step that is under way."""
        self._journal.append({_FINDS: step, **result})

    def end(self, step: str, data: Mapping[str, Any]) -> None:
        self._journal.append({_ENDS: step, **data})
        self.steps = read(self.path.parent)

    def reopen(self, step: str) -> None:
        """It is to be done again, as what it was about has changed; until then it stands."""
        self._journal.append({_REOPENS: step})
        self.steps = read(self.path.parent)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """What the rows in a folder say of each step. Raises OSError where there are none."""
    return steps(journal.read(folder / NAME))


def steps(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """By name, in the order in which they first began; one that did not end has what it found, and is not finished."""
    steps: dict[str, dict[str, Any]] = {}
    opened: list[Row] = []
    for row in rows:
        if _BEGINS in row:
            steps |= _cut_off(opened, steps)
            opened = [row]
        elif _ENDS in row:
            so_far = _so_far(opened) if "error" in row and opened else {}
            steps[row[_ENDS]] = so_far | _without(row, _ENDS)
            opened = []
        elif _REOPENS in row:
            steps[row[_REOPENS]] = steps.get(row[_REOPENS], {}) | {"finished": False}
        elif opened:
            opened.append(row)
    return steps | _cut_off(opened, steps)


def _cut_off(rows: Sequence[Row], step: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The step of these rows, which did not end; what an earlier call made of it stands."""
    if not rows or _ended(step.get(rows[0][_BEGINS])):
        return {}
    return {rows[0][_BEGINS]: _so_far(rows) | {"finished": False, "summary": "cut off"}}


def _so_far(rows: Sequence[Row]) -> dict[str, Any]:
    """What a step said when it began, and found."""
    data = _merged(_without(rows[0], _BEGINS), (_without(row, _FINDS) for row in rows if _FINDS in row))
    compared = bench.comparison_of(rows)
    return data | (compared.data() if compared else {})


def _ended(step: Mapping[str, Any] | None) -> bool:
    return step is not None and step.get("summary") != "cut off"


def _merged(data: dict[str, Any], parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Tables grow by what is in their like; anything else is what was found last."""
    for part in parts:
        for name, value in part.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return data


def _without(row: Row, name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}
