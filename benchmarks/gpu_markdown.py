"""Results of a run of `gpu.py` as tables in Markdown, one section per operator, for the operators' READMEs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_goals import goal

from tuner import operators
from tuner.base.fields import Fields, formatted
from tuner.bench import Comparison, Row
from tuner.evaluate.measure.device import SIMULATED
from tuner.evaluate.measure.samples import Estimate
from tuner.spec.command_line import minimal_fields
from tuner.spec.operator import Cost
from tuner.spec.problem import from_fields

Steps = Mapping[str, Mapping[str, Any]]  # by name, as returned by `gpu_rows.steps`
Table = Sequence[Sequence[str]]  # the first row is the header
_TESTS = ("measuring", "conformance", "wgmma with another NVRTC", "faults")


@dataclass(frozen=True)
class Device:
    """The device of a run and its peak rates, which are 0 if unknown."""

    facts: Fields
    copy_gb_s: float
    matmul_tflop_s: float

    @staticmethod
    def of(steps: Steps) -> "Device":
        facts = steps.get("device", {})
        return Device(facts, facts.get("copy_gb_s", 0.0), steps.get("timer matmul", {}).get("tflop_s", 0.0))

    @property
    def known(self) -> bool:
        return "model" in self.facts

    @property
    def simulated(self) -> bool:
        return self.known and self.facts["model"] == SIMULATED

    def __str__(self) -> str:
        if not self.known:
            return f"The device is not known: {self.facts.get('error', 'the run ended before it was asked')}"
        parts = [str(self.facts["model"])]
        if "driver" in self.facts:
            parts.append(f"driver for CUDA {_version(self.facts['driver'])}")
        if self.copy_gb_s:
            parts.append(f"copies {self.copy_gb_s:.0f} GB/s")
        if self.matmul_tflop_s:
            parts.append(f"bf16 matmul {self.matmul_tflop_s:.0f} TFLOP/s")
        return ", ".join(parts)

    def roof(self, cost: Cost) -> float:
        """Return the minimum time of a problem at these rates in microseconds; 0 if a rate is unknown."""
        if not self.matmul_tflop_s or not self.copy_gb_s:
            return 0.0
        return max(cost.flops / self.matmul_tflop_s / 1e6, cost.bytes / self.copy_gb_s / 1e3)


def _version(number: Any) -> str:
    """Format a CUDA version: 13000 is 13.0."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


def document(steps: Steps, only: Sequence[str] = ()) -> str:
    """Return every table of every operator, or of the given ones, and the errors."""
    device = Device.of(steps)
    parts = [f"{'SIMULATED, nothing here was measured: ' if device.simulated else ''}{device}."]
    parts += [f"Tests of {name}: {steps[name]['summary']}." for name in _TESTS if "summary" in steps.get(name, {})]
    parts += filter(None, [missing(steps), timer(steps)])
    for name in only or operators.names():
        sections = [verified(steps, name), timed(steps, name, device), *compared(steps, name, device)]
        if any(sections):
            parts += [f"## {name}", *filter(None, sections)]
    wrong = [f"- {name}: {step['error']}" for name, step in steps.items() if "error" in step]
    wrong += [f"- {name}: {step['warning']}" for name, step in steps.items() if "warning" in step]
    wrong += [f"- {name}: {test}" for name in _TESTS for test in steps.get(name, {}).get("failed", ())]
    unfinished = [f"- {name}: not finished" for name, step in steps.items() if not step.get("finished", True)]
    if wrong or unfinished:
        parts += ["## Wrong or unfinished", "\n".join([*wrong, *unfinished])]
    return "\n\n".join(parts) + "\n"


def markdown(table: Table) -> str:
    """Format a table; empty columns are omitted."""
    columns = [i for i, _ in enumerate(table[0]) if any(row[i] for row in table[1:])]
    head, *rows = ([row[i].replace("|", "\\|") for i in columns] for row in table)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(columns), *rows))


def missing(steps: Steps) -> str:
    """Return the packages that were not installed on the device."""
    return f"Packages {steps['installed']['summary']}." if "summary" in steps.get("installed", {}) else ""


def timer(steps: Steps) -> str:
    """Return the table of the timer checks and what they prove."""
    rows = [
        [name.partition(" ")[2], step["summary"], step.get("proves", "")]
        for name, step in steps.items()
        if name.startswith("timer ") and "summary" in step
    ]
    return markdown([["timer", "found", "proves"], *rows]) if rows else ""


def verified(steps: Steps, operator: str) -> str:
    """Return a table with a row per implementation and a column per step: the searched problem, then other dtypes.

    An implementation that is correct there and still `unproven` may be marked as proven.
    """
    prefix = f"verification {operator}"
    verdicts = {name: step.get("found", {}) for name, step in steps.items() if f"{name} ".startswith(f"{prefix} ")}
    if not verdicts:
        return ""
    unproven = {
        implementation.name for implementation in operators.implementations(operator) if implementation.unproven
    }
    head = ["verified", *(name.removeprefix(prefix).strip() or _default_dtype(operator) for name in verdicts)]
    rows = []
    for name in dict.fromkeys(name for verdict in verdicts.values() for name in verdict):
        label = f"{name}, unproven" if name.partition(" ")[0] in unproven else name
        rows.append([label, *(verdict.get(name, "") for verdict in verdicts.values())])
    return markdown([head, *rows])


def _default_dtype(operator: str) -> str:
    fields = operators.load(operator).problem.__dataclass_fields__
    return str(fields["dtype"].default.value) if "dtype" in fields else "default"


def timed(steps: Steps, operator: str, device: Device) -> str:
    """Return a table with a row per problem: the best default, and the result of the search."""
    rows: dict[str, list[str]] = {}
    for column, kind in enumerate(("defaults", "search"), start=1):
        for name, step in steps.items():
            if name.startswith(f"{kind} ") and step.get("operator") == operator and step.get("times_us"):
                row = rows.setdefault(step["about"], [step["about"].partition(" ")[2] or "default", *[""] * 6])
                row[column], time_us = _best(step)
                row[3:] = _rates(operator, step["problem"], time_us, device)
    head = ["problem", "best default, µs", "searched, µs", "TFLOP/s", "GB/s", "of the roof", "goal"]
    return markdown([head, *rows.values()]) if rows else ""


def _best(step: Mapping[str, Any]) -> tuple[str, float]:
    """Return the record of a search with its race time, or else the fastest timed config."""
    if record := step.get("record"):
        measurement = record["measurement"]
        interval = f"{measurement['low_us']:.4g} … {measurement['high_us']:.4g}"
        return f"{record['identity']['implementation']} {measurement['time_us']:.4g} ({interval})", measurement[
            "time_us"
        ]
    implementation, time_us = min(step["times_us"].items(), key=lambda pair: pair[1])
    return f"{implementation} {time_us:.4g}", time_us


def _rates(operator: str, problem: Fields, time_us: float, device: Device) -> list[str]:
    """Return TFLOP/s and GB/s of the minimum work and traffic, and the fractions of the roof and of the goal."""
    op = operators.load(operator)
    cost = op.cost(from_fields(op.problem, problem))
    roof, target = device.roof(cost), goal(operator, problem, str(device.facts.get("gpu", "")))
    return [
        f"{cost.flops / time_us / 1e6:.3g}",
        f"{cost.bytes / time_us / 1e3:.0f}",
        f"{roof / time_us:.0%}" if roof else "",
        f"{target.text}: {target.reached(time_us):.0%}" if target else "",
    ]


def compared(steps: Steps, operator: str, device: Device) -> Iterator[str]:
    """Yield a table with a row per comparison and a column per contender and launch mode (time relative to ours), then
    notes.
    """
    comparisons = [Comparison.of(step) for step in steps.values() if "rows" in step and step["operator"] == operator]
    found = [comparison for comparison in comparisons if comparison.rows and comparison.rows[0].time_us]
    if not found:
        return
    timed = [row for comparison in found for row in comparison.rows if row.time_us]
    first = timed[0]
    again = list(dict.fromkeys(row.label for row in timed if row.name == first.name and row.launch != first.launch))
    names = list(dict.fromkeys(row.label for row in timed if row.name != first.name))
    head = ["problem, inputs", "ours, µs", "TFLOP/s", "GB/s", "of the roof", "goal"]
    head += [*(f"{name}, µs" for name in again), *(f"{name}, ×" for name in names)]
    yield markdown([head, *(_compared(comparison, again, names, device) for comparison in found)])
    why = dict.fromkeys(
        f"{row.label}: {row.state}, {row.note}" for comparison in found for row in comparison.rows if not row.time_us
    )
    why |= dict.fromkeys(
        f"{row.name}: {row.note}" for comparison in found for row in comparison.rows if row.state == "ok" and row.note
    )
    if why:
        yield "\n".join(f"- {reason}" for reason in why)


def _compared(comparison: Comparison, again: Sequence[str], names: Sequence[str], device: Device) -> list[str]:
    """Return one row; `again` are ours with the other launch mode, `names` the other contenders."""
    rows = {row.label: row for row in comparison.rows}
    our_time = comparison.rows[0].time_us
    assert our_time, "ours is first and is always timed"
    rates = _rates(comparison.operator, comparison.problem, our_time.mid, device)
    times = (_cell(rows.get(name), "time_us") for name in again)
    ratios = (_cell(rows.get(name), "ratio") for name in names)
    return [f"{_short(comparison)}, {comparison.inputs}", _estimate(our_time), *rates, *times, *ratios]


def _short(comparison: Comparison) -> str:
    """Return the fields of the problem that differ from the operator's default."""
    problem = from_fields(operators.load(comparison.operator).problem, comparison.problem)
    return formatted(minimal_fields(problem)) or "default"


def _cell(row: Row | None, name: str) -> str:
    value = getattr(row, name, None)
    return _estimate(value) if value else row.state if row else ""


def _estimate(estimate: Estimate) -> str:
    return f"{estimate.mid:.4g} ({estimate.low:.4g} … {estimate.high:.4g})"
