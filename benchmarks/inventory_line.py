"""What `inventory.py` knows of one problem on one GPU, as a line of JSON."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tuner.base.fields import Fields


@dataclass(frozen=True)
class Standing:
    """One implementation there: its best predicted cost before and after compiling."""

    implementation: str
    declared: float  # of the best config, by the work that it declares
    configs: tuple[Fields, ...]  # that are worth compiling, the most promising first
    compiled: float | None = None  # of the best of these, by declared work and machine code; None: not compiled
    config: Fields = field(default_factory=dict)  # that one
    flawed: bool = False  # it spills, or breaks another rule on machine code
    oracle: bool = False  # it is there to be right: it never races


@dataclass(frozen=True)
class Line:
    """All implementations that serve a problem on a GPU. `done`: nothing is left that compiling would decide."""

    operator: str
    gpu: str
    problem: str
    code: str  # digest of what it was predicted from
    standings: tuple[Standing, ...]
    done: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.operator, self.gpu, self.problem, self.code

    def without(self, gone: Iterable[str]) -> "Line":
        """As if these implementations, named operator/implementation, were not there."""
        left = (standing for standing in self.standings if f"{self.operator}/{standing.implementation}" not in gone)
        return replace(self, standings=tuple(left))

    def ranked(self) -> tuple[Standing, ...]:
        """The best first: those that were compiled, then the others, which were too far behind."""
        unknown = float("inf")
        return tuple(sorted(self.standings, key=lambda standing: (standing.compiled or unknown, standing.declared)))


def margin(first: Standing, other: Standing) -> float:
    """How much longer the other takes by prediction, both looked at in the same way: 0.1 is a tenth."""
    if first.compiled and other.compiled:
        return other.compiled / first.compiled - 1
    return other.declared / first.declared - 1


def read(path: Path) -> dict[tuple[str, str, str, str], Line]:
    """The lines of a file by their keys, the last of each; none without the file. A line cut short is left out."""
    lines = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        if text.endswith("}"):
            line = _line(json.loads(text))
            lines[line.key] = line
    return lines


def write(path: Path, line: Line) -> None:
    """Append a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def _line(data: Mapping[str, object]) -> Line:
    standings: list[dict[str, object]] = data["standings"]  # type: ignore[assignment]  # as `write` leaves them
    parsed = (Standing(**standing | {"configs": tuple(standing["configs"])}) for standing in standings)  # type: ignore[arg-type]
    return Line(**{**data, "standings": tuple(parsed)})  # type: ignore[arg-type]
