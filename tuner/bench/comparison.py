"""How contenders did on one problem and device: what a comparison says, as a table and as JSON."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from tuner import operators
from tuner.base import result
from tuner.base.result import Evidence, Fields
from tuner.evaluate.measure.device import SIMULATED
from tuner.evaluate.measure.samples import Estimate
from tuner.spec.problem import from_fields
from tuner.spec.telling import independent


@dataclass(frozen=True, slots=True)
class Row:
    """One contender. Times in microseconds; `ratio` is its time over ours, from paired differences."""

    name: str
    state: str  # ok, absent, failed, wrong, lost with its process, or roof: a copy and no kernel
    note: str = ""
    launch: str = "eager"  # or graph
    time_us: Estimate | None = None
    ratio: Estimate | None = None

    @property
    def label(self) -> str:
        return self.name if self.launch == "eager" else f"{self.name} (graph)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table of contenders on one problem and device. Ours first."""

    COLUMNS: ClassVar = ("contender", "launch", "state", "time", "interval", "ratio", "interval ", "note")

    operator: str
    problem: Fields
    inputs: str  # kind
    config: Fields
    implementation: str
    device: Fields
    policy: str
    rows: tuple[Row, ...]

    @staticmethod
    def of(data: Mapping[str, Any]) -> "Comparison":
        """What `data` was made of; other keys in it are left alone."""
        rows = tuple(
            Row(**{**row, "time_us": _estimate(row["time_us"]), "ratio": _estimate(row["ratio"])})
            for row in data["rows"]
        )
        return Comparison(
            **{each.name: data[each.name] for each in fields(Comparison) if each.name != "rows"}, rows=rows
        )

    @property
    def evidence(self) -> str:
        """What a simulation says is not measured."""
        return "simulated" if self.device["model"] == SIMULATED else Evidence.MEASURED.value

    @property
    def title(self) -> str:
        return f"{spelled(self.operator, self.problem)}, inputs {self.inputs}"

    def data(self) -> dict[str, Any]:
        """JSON-able."""
        return {"evidence": self.evidence, **asdict(self)}

    def table(self) -> list[tuple[str, ...]]:
        """COLUMNS: median µs with interval, and time over ours with interval."""
        return [
            (row.name, row.launch, row.state, *_spelled(row.time_us, "µs"), *_spelled(row.ratio, "×"), row.note)
            for row in self.rows
        ]


def _estimate(data: Mapping[str, Any] | None) -> Estimate | None:
    return Estimate(**data) if data else None


def spelled(operator: str, problem: Fields, names: Collection[str] | None = None) -> str:
    """A problem, or only its fields of these names, without what is off or empty or follows from the rest."""
    told = independent(from_fields(operators.load(operator).problem, problem))
    return result.spelled({n: value for n, value in told.items() if value and (names is None or n in names)})


def _spelled(found: Estimate | None, unit: str) -> tuple[str, str]:
    if found is None:
        return "", ""
    return f"{found.mid:.4g} {unit}", f"{found.low:.4g} … {found.high:.4g}"
