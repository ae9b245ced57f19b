"""The results of `inventory.py` for one problem on one GPU, as a line of JSON."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tuner.base.fields import Fields


@dataclass(frozen=True)
class Standing:
    """One implementation: its best predicted cost before and after compiling."""

    implementation: str
    declared: float  # cost of the best config by its declared work
    configs: tuple[Fields, ...]  # configs worth compiling, the most promising first
    compiled: float | None = None  # best cost of these by declared work and machine code; None: not compiled
    config: Fields = field(default_factory=dict)  # the config with that cost
    flawed: bool = False  # it spills, or violates another rule for machine code
    oracle: bool = False  # a reference implementation, which never competes


@dataclass(frozen=True)
class Line:
    """All implementations that serve a problem on a GPU. `done`: compiling more would not change the result."""

    operator: str
    gpu: str
    problem: str
    code: str  # digest of the code behind the predictions
    standings: tuple[Standing, ...]
    done: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.operator, self.gpu, self.problem, self.code

    def without(self, gone: Iterable[str]) -> "Line":
        """Return the line without these implementations, named operator/implementation."""
        left = (standing for standing in self.standings if f"{self.operator}/{standing.implementation}" not in gone)
        return replace(self, standings=tuple(left))

    def ranked(self) -> tuple[Standing, ...]:
        """The implementations, best first: compiled ones, then the others, which were too far behind."""
        unknown = float("inf")
        return tuple(sorted(self.standings, key=lambda standing: (standing.compiled or unknown, standing.declared)))


def margin(first: Standing, other: Standing) -> float:
    """Return how much longer the other is predicted to take, by the same kind of prediction: 0.1 means 10 %."""
    if first.compiled and other.compiled:
        return other.compiled / first.compiled - 1
    return other.declared / first.declared - 1


def read(path: Path) -> dict[tuple[str, str, str, str], Line]:
    """Return the last line of each key in a file; empty without the file. A truncated line is skipped."""
    lines = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        if text.endswith("}"):
            line = _line(json.loads(text))
            lines[line.key] = line
    return lines


def write(path: Path, line: Line) -> None:
    """Append a line to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def _line(data: Mapping[str, object]) -> Line:
    standings: list[dict[str, object]] = data["standings"]  # type: ignore[assignment]  # as `write` leaves them
    parsed = (Standing(**standing | {"configs": tuple(standing["configs"])}) for standing in standings)  # type: ignore[arg-type]
    return Line(**{**data, "standings": tuple(parsed)})  # type: ignore[arg-type]
