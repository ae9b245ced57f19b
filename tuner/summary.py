"""What a search found, as people and programs read it: report data, a winner's rows, JSON."""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner import __version__, operators, report
from tuner.arch import GPU
from tuner.assets import REPORTS
from tuner.operator import Implementation, Operator, from_fields, statics, to_fields
from tuner.race import Lane
from tuner.render import render
from tuner.report import Fact, ReportData, SearchFacts, SpaceFacts
from tuner.result import Attempt, Scalar, TuningRecord, to_data
from tuner.tune import Outcome

_MMA_FLOPS = 16 * 8 * 16 * 2  # one m16n8k16


def write(outcomes: Sequence[Outcome], path: Path | None) -> Path:
    """Write the report of one or more searches; returns where. Raises MachineError where nothing can be written."""
    target = path or default_path(outcomes)
    report.write(report.render([report_data(outcome) for outcome in outcomes]), target)
    return target


def default_path(outcomes: Sequence[Outcome]) -> Path:
    """`reports/out` in a checkout, and in the current folder of an installed program."""
    first = outcomes[0].request
    folder = REPORTS / "out" if (REPORTS.parent / "pyproject.toml").is_file() else Path("reports/out")
    gpu = first.gpu.name.replace(" ", "_")
    if len(outcomes) > 1:
        return folder / f"{first.operator.name}-{gpu}.html"
    data = to_fields(first.problem)
    words = [name if value is True else str(value) for name, value in data.items() if value is not False]
    return folder / f"{'-'.join([first.operator.name, gpu, *words])}.html"


FORMATS: Mapping[str, Callable[[Sequence[ReportData]], str]] = {
    "html": report.render,
    "md": report.markdown,
    "json": report.data_json,
}


def text(outcomes: Sequence[Outcome], form: str) -> str:
    """The report in one of FORMATS."""
    return FORMATS[form]([report_data(outcome) for outcome in outcomes])


def report_data(outcome: Outcome) -> ReportData:
    """Everything the report shows of one search."""
    request, record = outcome.request, outcome.record
    default = default_tried(outcome)
    return ReportData(
        operator=request.operator.name,
        implementations=tuple(outcome.race.lanes),
        problem=to_fields(request.problem),
        gpu=request.gpu.name,
        arch=request.gpu.arch.name,
        device=request.gpu.device.name,
        evidence=outcome.evidence,
        attempts=[each.attempt for each in outcome.tried],
        search=_search_facts(outcome),
        command=request.command,
        record=record,
        verdicts={i: each.verdict for i, each in enumerate(outcome.tried) if each.verdict},
        default=default,
        spaces=tuple(_space_facts(lane) for lane in outcome.race.lanes.values()),
        importance=outcome.race.importance(),
        work=work_facts(request.operator, request.problem, request.gpu, record) if record else (),
        source=_source(request.operator, request.problem, record.identity.implementation, record.config)
        if record
        else "",
        default_source=_default_source(request.operator, request.problem, request.gpu, record) if record else "",
        environment=environment(record),
        usage=usage(request.operator, request.problem),
    )


def default_tried(outcome: Outcome) -> Attempt | None:
    """The attempt of the winner's implementation's default config, where it was tried."""
    lane = _winning_lane(outcome)
    if lane is None:
        return None
    config = to_fields(lane.implementation.default(outcome.request.problem, outcome.request.gpu.arch))
    found = (
        each.attempt
        for each in outcome.tried
        if each.candidate.implementation.name == lane.implementation.name and dict(each.attempt.config) == config
    )
    return next(found, None)


def _winning_lane(outcome: Outcome) -> Lane | None:
    return outcome.race.lanes.get(outcome.record.identity.implementation) if outcome.record else None


def winner_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """The winner as label and value, for a terminal."""
    record, request = outcome.record, outcome.request
    assert record is not None
    used, prediction = record.resources, record.prediction
    rows = [
        ("implementation", record.identity.implementation),
        ("config", " ".join(f"{name}={value}" for name, value in record.config.items())),
        ("resources", _resources(record)),
        ("verified", f"{record.verdict.where}: {len(record.verdict.checks)} runs, {_errors(record)}"),
        ("margin", f"{record.margin:.1%} to the runner-up{_to_default(outcome)}"),
    ]
    if prediction is not None:
        rows.append(("binds", f"{prediction.bottleneck} (by {prediction.model}: a rank, not a time)"))
    if record.measurement is not None:
        m = record.measurement
        rows.append(("time", f"{m.time_us:.2f} us [{m.low_us:.2f}, {m.high_us:.2f}], {m.samples} samples"))
    rows += [
        (f.label, f"{f.value} {f.note}") for f in work_facts(request.operator, request.problem, request.gpu, record)
    ]
    rows.append(("tried", f"{len(outcome.tried)} ({outcome.reused} earlier) in {outcome.seconds:.0f} s"))
    rows.append(("stopped", outcome.why_stopped))
    assert used is not None
    return rows


def _resources(record: TuningRecord) -> str:
    used = record.resources
    spills = "no spills" if not used.spill_bytes else f"{used.spill_bytes} B spilled"
    return (
        f"{used.registers} registers, {spills}, {used.smem_bytes / 1024:.1f} KB shared memory, {used.threads} threads, "
        f"{used.ctas_per_sm} CTAs an SM (limited by {used.limiter})"
    )


def _errors(record: TuningRecord) -> str:
    return ", ".join(f"{e.name} error {e.rmse_ratio:.1e} of {e.limit:.1e} allowed" for e in record.verdict.errors)


def _to_default(outcome: Outcome) -> str:
    default, record = default_tried(outcome), outcome.record
    if default is None or default.value is None or record is None:
        return ""
    own = record.measurement.time_us if record.measurement else record.prediction.cost if record.prediction else None
    return f", {default.value / own - 1:.1%} to the default" if own else ""


def work_facts(operator: Operator[Any], problem: Any, gpu: GPU, record: TuningRecord) -> tuple[Fact, ...]:
    """What the winner does against the least that any implementation must do."""
    implementation = operators.implementation(operator.name, record.identity.implementation)
    config = from_fields(implementation.config, record.config)
    work, floor = implementation.work(problem, config, gpu), operator.cost(problem)
    facts = []
    if products := work.mma + work.wgmma:
        ratio = products * _MMA_FLOPS / floor.flops
        facts.append(Fact("tensor work", f"{ratio:.3f} ×", "the mathematics (tiles on the edges are whole)"))
    facts.append(Fact("DRAM traffic", f"{work.dram_bytes / floor.bytes:.2f} ×", "the least possible, as declared"))
    return tuple(facts)


def data(outcome: Outcome) -> dict[str, Any]:
    """One search as JSON-able data."""
    return {
        "operator": outcome.request.operator.name,
        "problem": to_fields(outcome.request.problem),
        "gpu": outcome.request.gpu.name,
        "evidence": outcome.record.evidence.value if outcome.record else None,
        "record": to_data(outcome.record) if outcome.record else None,
        "tried": len(outcome.tried),
        "failed": sum(each.attempt.failure is not None for each in outcome.tried),
        "reused": outcome.reused,
        "seconds": round(outcome.seconds, 2),
        "why_stopped": outcome.why_stopped,
    }


def environment(record: TuningRecord | None) -> dict[str, str]:
    """What the result depends on besides the config."""
    found = {
        "tuner": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }
    if record:
        found |= {
            "compiler": record.identity.toolkit,
            "options": record.identity.options,
            "policy": record.identity.policy,
            "source digest": record.identity.source,
            "made": record.created,
        }
    return found


def usage(operator: Operator[Any], problem: Any) -> str:
    """Python that runs the winner."""
    names = ", ".join(argument.name for argument in operator.arguments if argument.role.value == "input")
    outputs = ", ".join(argument.name for argument in operator.outputs)
    flags = "".join(f", {n}=True" for n in statics(problem) if getattr(problem, n) is True)
    return f"from tuner import dispatcher\n\n{outputs} = dispatcher.{operator.name}({names}{flags})\n"


def parse(problem: str) -> dict[str, Scalar]:
    """The fields of a Problem stored as canonical JSON."""
    found: dict[str, Scalar] = json.loads(problem)
    return found


def _search_facts(outcome: Outcome) -> SearchFacts:
    request, lane = outcome.request, _winning_lane(outcome)
    return SearchFacts(
        method=request.method,
        seed=request.seed,
        budget=request.tries,
        effort=request.effort,
        stopped=outcome.why_stopped,
        seconds=outcome.seconds,
        resumed=outcome.reused,
        prior_correlation=lane.sampler.prior_correlation if lane else None,
    )


def _space_facts(lane: Lane) -> SpaceFacts:
    space = lane.space
    return SpaceFacts(lane.implementation.name, space.raw_size, len(space), space.counts(), lane.closed_because)


def _source(operator: Operator[Any], problem: Any, name: str, config: Mapping[str, Any]) -> str:
    implementation: Implementation[Any, Any] = operators.implementation(operator.name, name)
    return render(operator, implementation, problem, from_fields(implementation.config, config)).text


def _default_source(operator: Operator[Any], problem: Any, gpu: GPU, record: TuningRecord) -> str:
    implementation = operators.implementation(operator.name, record.identity.implementation)
    return render(operator, implementation, problem, implementation.default(problem, gpu.arch)).text
