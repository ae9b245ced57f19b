"""The rows of a run of `gpu.py`: one when a step starts, one for each result, and one when the step ends.

Readers get everything that was known when the run ended, regardless of how it ended.
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
    """The file of a run, and the state of each step. Every row is on disk before the run continues."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._journal = Journal(self.path)
        self.steps = read(folder)

    def begin(self, step: str, may_take_s: float, details: Mapping[str, Any]) -> None:
        self._journal.append({_BEGINS: step, "may_take_s": round(may_take_s, 1), **details})

    def find(self, step: str, result: Mapping[str, Any]) -> None:
        """Record a result of the current step."""
        self._journal.append({_FINDS: step, **result})

    def end(self, step: str, data: Mapping[str, Any]) -> None:
        self._journal.append({_ENDS: step, **data})
        self.steps = read(self.path.parent)

    def reopen(self, step: str) -> None:
        """Mark a step to be repeated because its input has changed; its result is kept until then."""
        self._journal.append({_REOPENS: step})
        self.steps = read(self.path.parent)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the state of each step from the rows in a folder. Raises OSError if there are none."""
    return steps(journal.read(folder / NAME))


def steps(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the steps by name, in order of their first start; a step without an end has its results and is
    unfinished.
    """
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
    """Return the unfinished step of these rows, with the results of an earlier call."""
    if not rows or _ended(step.get(rows[0][_BEGINS])):
        return {}
    return {rows[0][_BEGINS]: _so_far(rows) | {"finished": False, "summary": "cut off"}}


def _so_far(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the data of a step's start and its results."""
    data = _merged(_without(rows[0], _BEGINS), (_without(row, _FINDS) for row in rows if _FINDS in row))
    compared = bench.comparison_of(rows)
    return data | (compared.data() if compared else {})


def _ended(step: Mapping[str, Any] | None) -> bool:
    return step is not None and step.get("summary") != "cut off"


def _merged(data: dict[str, Any], parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merge the parts: dictionaries are merged, and other values are replaced by the latest."""
    for part in parts:
        for name, value in part.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return data


def _without(row: Row, name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}
