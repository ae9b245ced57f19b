"""Results of contenders on one problem and device, as a table and as JSON."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from tuner import operators
from tuner.base import fields as plain_fields
from tuner.base.fields import Fields
from tuner.evaluate.measure.device import SIMULATED
from tuner.evaluate.measure.samples import Estimate
from tuner.results.attempt import Evidence
from tuner.spec.command_line import independent_fields
from tuner.spec.problem import from_fields


@dataclass(frozen=True, slots=True)
class Row:
    """One contender. Times are in microseconds; `ratio` is its time relative to ours with the same launch mode, paired
    by round.
    """

    name: str
    state: str  # ok, absent, failed, wrong, lost with its process, untimed, or roof (a copy, not a kernel)
    note: str = ""
    launch: str = "eager"  # or graph
    time_us: Estimate | None = None
    ratio: Estimate | None = None
    sm_mhz: float = 0.0  # median SM clock after its samples; 0 if unavailable

    @property
    def label(self) -> str:
        return self.name if self.launch == "eager" else f"{self.name} (graph)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Contenders on one problem and device; ours come first."""

    COLUMNS: ClassVar = ("contender", "state", "eager", "eager ×", "graph", "graph ×", "SM MHz", "note")

    operator: str
    problem: Fields
    inputs: str  # kind of inputs
    config: Fields
    implementation: str
    device: Fields
    policy: str
    rows: tuple[Row, ...]

    @staticmethod
    def of(data: Mapping[str, Any]) -> "Comparison":
        """Build a comparison from `data`; unknown keys are ignored."""
        rows = tuple(
            Row(**{**row, "time_us": _estimate(row["time_us"]), "ratio": _estimate(row["ratio"])})
            for row in data["rows"]
        )
        return Comparison(
            **{field.name: data[field.name] for field in fields(Comparison) if field.name != "rows"}, rows=rows
        )

    @property
    def evidence(self) -> str:
        """`measured`, or `simulated` for a simulated device."""
        return "simulated" if self.device["model"] == SIMULATED else Evidence.MEASURED.value

    @property
    def title(self) -> str:
        return f"{formatted_problem(self.operator, self.problem)}, inputs {self.inputs}"

    def data(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {"evidence": self.evidence, **asdict(self)}

    def table(self) -> list[tuple[str, ...]]:
        """Return rows of COLUMNS: median in µs and ratio to ours, with intervals; eager and graph launches are separate
        columns.
        """
        return [
            (row.name, row.state, *_times(row), f"{row.sm_mhz:.0f}" if row.sm_mhz else "", row.note)
            for row in self.rows
        ]


def _estimate(data: Mapping[str, Any] | None) -> Estimate | None:
    return Estimate(**data) if data else None


def formatted_problem(operator: str, problem: Fields, names: Collection[str] | None = None) -> str:
    """Format a problem, or the fields in `names`, without fields that are off, empty or derived."""
    fields_shown = independent_fields(from_fields(operators.load(operator).problem, problem))
    return plain_fields.formatted(
        {n: value for n, value in fields_shown.items() if value and (names is None or n in names)}
    )


def _times(row: Row) -> tuple[str, ...]:
    """Return the cells of both launch modes, one of which is filled."""
    cells = (_estimate_text(row.time_us, " µs"), _estimate_text(row.ratio, ""))
    return (*cells, "", "") if row.launch == "eager" else ("", "", *cells)


def _estimate_text(estimate: Estimate | None, unit: str) -> str:
    return f"{estimate.mid:.4g}{unit} ({estimate.low:.4g} … {estimate.high:.4g})" if estimate else ""
