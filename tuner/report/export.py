"""A report as JSON, for programs."""

import json
import math
from collections.abc import Sequence
from typing import Any

from tuner.report.data import ReportData
from tuner.report.standing import judged, parameters
from tuner.results.attempt import Attempt, Measurement
from tuner.results.codec import to_data
from tuner.search.portfolio import Family

SCHEMA = "tuner-report/1"


def data_json(data: Sequence[ReportData], families: Sequence[Family] = ()) -> str:
    """Return one JSON object. Attempts form a table without empty columns; logs stay in the database."""
    problems = [_problem(problem) for problem in data]
    portfolios = {"portfolios": [to_data(family) for family in families]} if families else {}
    document = _finite({"schema": SCHEMA, "problems": problems, **portfolios})
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def script_json(data: Sequence[ReportData], families: Sequence[Family] = ()) -> str:
    """Return `data_json` for a script element, without `<`, so that no text can end the element."""
    return data_json(data, families).replace("<", "\\u003c")


def _problem(data: ReportData) -> dict[str, Any]:
    return {
        "operator": data.operator,
        "problem": dict(data.problem),
        "gpu": data.gpu,
        "arch": data.arch,
        "device": data.device,
        "evidence": data.evidence.value,
        "record": to_data(data.record) if data.record else None,
        "race": to_data(data.race) if data.race else None,
        "default": dict(data.default.config) if data.default else None,
        "attempts": _table(judged(data.attempts, data.verdicts)),
        "verdicts": {str(index): to_data(verdict) for index, verdict in data.verdicts.items()},
        "importance": {name: dict(sorted(shares.items())) for name, shares in data.importance.items()},
        "work": [to_data(fact) for fact in data.work],
        "search": to_data(data.search),
        "spaces": [to_data(space) for space in data.spaces],
        "environment": dict(data.environment),
        "command": data.command,
    }


def _table(attempts: Sequence[Attempt]) -> dict[str, Any]:
    names = parameters(attempt.config for attempt in attempts)
    terms = parameters(attempt.prediction.terms for attempt in attempts if attempt.prediction)
    columns = ["implementation", *(f"config.{name}" for name in names), "stage", "reason", "cost", "time_us", "low_us"]
    columns += ["high_us", "samples", "duplicate_of", "cycles", "sm_mhz", "throttle", "temperature_c", "late"]
    columns += ["registers", "spill_bytes", "smem_bytes", "threads", "ctas_per_sm", "sass_digest"]
    columns.append("flaws")
    columns += [f"term.{name}" for name in terms]
    rows = [_row(attempt, names, terms) for attempt in attempts]
    used = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    return {"columns": [columns[i] for i in used], "rows": [[row[i] for i in used] for row in rows]}


def _row(attempt: Attempt, names: Sequence[str], terms: Sequence[str]) -> list[Any]:
    failure, resources, prediction, time = attempt.failure, attempt.resources, attempt.prediction, attempt.measurement
    row: list[Any] = [attempt.identity.implementation, *(attempt.config.get(name) for name in names)]
    row += [failure.stage.value, failure.reason] if failure else [None, None]
    row.append(prediction.cost if prediction else None)
    row += _times(time) if time else [None] * 10
    if resources:
        row += [resources.registers, resources.spill_bytes, resources.smem_bytes, resources.threads]
        row += [resources.ctas_per_sm, resources.sass_digest, "; ".join(resources.flaws) or None]
    else:
        row += [None] * 7
    return row + [prediction.terms.get(name) if prediction else None for name in terms]


def _times(time: Measurement) -> list[Any]:
    """Return a time and the device state, as far as known."""
    numbers = [time.time_us, time.low_us, time.high_us, time.samples, time.duplicate_of or None]
    seen = [time.cycles, time.sm_mhz, time.throttle, time.temperature_c, time.late] if time.sm_mhz else [None] * 5
    return numbers + seen


def _finite(value: Any) -> Any:
    """Round floats to six digits, convert whole ones to integers, and non-finite ones to null."""
    if isinstance(value, float):
        short = float(f"{value:.6g}") if math.isfinite(value) else None
        return int(short) if short is not None and short.is_integer() else short
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
