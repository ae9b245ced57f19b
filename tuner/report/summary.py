"""The results of a search for people and programs: report data, a winner's rows, JSON."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np

from tuner import __version__, operators, report
from tuner.arch import GPU
from tuner.base.assets import TEMPLATES
from tuner.compiler.render import render
from tuner.evaluate.predict import least_work
from tuner.evaluate.predict.predicted_time import UNJUDGED, predicted_time
from tuner.report import UNDECLARED, BeliefFacts, Fact, ReportData, Rival, SearchFacts, SpaceFacts, rivals_of
from tuner.report.headline import Headline, headline
from tuner.report.timelines import CodePath, paths
from tuner.results.codec import to_data
from tuner.results.record import TuningRecord
from tuner.search.bandit import Arm
from tuner.search.portfolio import Family
from tuner.search.study import Outcome, Tried
from tuner.spec.command_line import minimal_fields, search_command
from tuner.spec.instance import Instance
from tuner.spec.operator import Cost, Operator
from tuner.spec.problem import from_fields, statics, to_fields

_TIMELINES = 4  # problems; a page of more has no timelines


def write(outcomes: Sequence[Outcome], path: Path, families: Sequence[Family] = ()) -> None:
    """Write the page of one or more searches. Raises MachineError if it cannot be written."""
    report.write(text(outcomes, "html", families), path)


FORMATS: Mapping[str, Callable[[Sequence[ReportData], Sequence[Family]], str]] = {
    "html": report.render,
    "md": report.markdown,
    "json": report.data_json,
}


def text(outcomes: Sequence[Outcome], form: str, families: Sequence[Family] = ()) -> str:
    """Return the report in one of FORMATS."""
    drawn = form == "html" and len(outcomes) <= _TIMELINES
    return FORMATS[form]([report_data(outcome, with_timelines=drawn) for outcome in outcomes], families)


def report_data(outcome: Outcome, *, with_timelines: bool = False) -> ReportData:
    """Return the report data of one search; timelines replay machine code, which takes a second per config."""
    request, record, won = outcome.request, outcome.record, winner(outcome)
    default = default_tried(outcome)
    first = headline(outcome)
    return ReportData(
        operator=request.operator.name,
        implementations=tuple(outcome.bandit.arms),
        problem=to_fields(request.problem),
        gpu=request.gpu.name,
        arch=request.gpu.arch.name,
        device=request.gpu.device.name,
        evidence=outcome.evidence,
        attempts=[tried.attempt for tried in outcome.tried],
        search=_search_facts(outcome),
        command=request.command,
        record=record,
        race=outcome.final,
        verdicts={i: tried.verdict for i, tried in enumerate(outcome.tried) if tried.verdict},
        default=default.attempt if default else None,
        spaces=tuple(_space_facts(arm) for arm in outcome.bandit.arms.values()),
        importance=outcome.bandit.importance(),
        work=work_facts(won, request.gpu, record) if won and record else (),
        source=render(won).text if won else "",
        default_source=render(request.default(won.implementation)).text if won else "",
        environment=environment(record),
        usage=usage(request.operator, request.problem),
        export=export(request.operator, request.problem, request.gpu),
        gain=first.gain if first else "",
        warning=first.warning if first else "",
        over_untuned=first.untuned.gain if first and first.untuned else None,
        defaults=tuple(name for name in to_fields(request.problem) if name not in minimal_fields(request.problem)),
        timelines=_timelines(outcome, won, default) if with_timelines else {},
    )


def _timelines(outcome: Outcome, won: Instance | None, default: Tried | None) -> dict[str, tuple[CodePath, ...]]:
    """Return the paths of the winner's machine code, and of the default's if that is another config."""
    record, gpu = outcome.record, outcome.request.gpu
    if won is None or record is None:
        return {}
    configs = {"winner": paths(won, record.identity, gpu)}
    if default is not None and default.attempt.identity != record.identity and default.attempt.failure is None:
        configs["default"] = paths(default.instance, default.attempt.identity, gpu)
    return {name: of for name, of in configs.items() if of}


def default_tried(outcome: Outcome) -> Tried | None:
    """Return the attempt at the default config of the winner's implementation, if it was tried."""
    won = winner(outcome)
    if won is None:
        return None
    key = outcome.request.default(won.implementation).key
    return next((tried for tried in outcome.tried if tried.instance.key == key), None)


def winner(outcome: Outcome) -> Instance | None:
    """Return the instance of the record."""
    if outcome.record is None:
        return None
    operator, of = outcome.request.operator, outcome.record
    implementation = operators.implementation(operator.name, of.identity.implementation)
    return Instance(operator, implementation, outcome.request.problem, from_fields(implementation.config, of.config))


def winning_arm(outcome: Outcome) -> Arm | None:
    return outcome.bandit.arms.get(outcome.record.identity.implementation) if outcome.record else None


def rivals(outcome: Outcome) -> tuple[Rival, ...]:
    """Return the implementations that lost to the winner."""
    arms = outcome.bandit.arms.values()
    verdicts = {i: tried.verdict for i, tried in enumerate(outcome.tried) if tried.verdict}
    attempts = [tried.attempt for tried in outcome.tried]
    closed = {arm.implementation.name: arm.closed_because for arm in arms}
    return rivals_of(attempts, verdicts, outcome.evidence, outcome.record, closed)


def work_facts(won: Instance, gpu: GPU, record: TuningRecord) -> tuple[Fact, ...]:
    """Return the winner's work relative to the minimum, and its rates if it was timed."""
    least, time = won.operator.cost(won.problem), _time_facts(gpu, record)
    if not won.implementation.declares_work:
        return (*time, UNDECLARED, *_rate_facts(least, gpu, record, multiplies=False))
    total = least_work.total(least_work.declared(won, gpu))
    facts = []
    if total.mma:
        facts.append(Fact("tensor work", f"{total.mma_ratio:.3f} ×", "the mathematics (tiles on the edges are whole)"))
    facts.append(Fact("DRAM traffic", f"{total.bytes_ratio:.2f} ×", "the least possible, as declared"))
    return (*time, *facts, *_rate_facts(least, gpu, record, multiplies=total.mma > 0))


def _time_facts(gpu: GPU, record: TuningRecord) -> tuple[Fact, ...]:
    """Return the predicted time at the boost clock with its band, or a note that the cost is only a rank."""
    if record.prediction is None:
        return ()
    time = predicted_time(record.prediction, gpu)
    clock = f"on {gpu.device.name} at {gpu.device.clock_mhz:.0f} MHz"
    value, note = (time.band, f"{clock}: {time.judged}") if time else ("unknown", f"({UNJUDGED})")
    return (Fact("predicted time", value, note),)


def _rate_facts(least: Cost, gpu: GPU, record: TuningRecord, *, multiplies: bool) -> Iterator[Fact]:
    if record.measurement is None:
        return
    rates, device = least_work.rates(least, gpu.device, record.measurement.time_us * 1e-6), gpu.device
    share = f", {rates.of_tensor_peak:.1%} of the 16-bit tensor peak" if multiplies else ""
    if least.flops:
        yield Fact("arithmetic (measured)", f"{rates.flops / 1e12:.3g} TFLOP/s", f"of the mathematics{share}")
    note = f"of the least traffic, {rates.of_bandwidth:.1%} of {device.dram_gb_s / 1e3:.3g} TB/s"
    yield Fact("memory (measured)", f"{rates.bytes / 1e12:.3g} TB/s", note)


def data(outcome: Outcome) -> dict[str, Any]:
    """Return one search as JSON-compatible data."""
    return {
        "operator": outcome.request.operator.name,
        "problem": to_fields(outcome.request.problem),
        "gpu": outcome.request.gpu.name,
        "evidence": outcome.record.evidence.value if outcome.record else None,
        "record": to_data(outcome.record) if outcome.record else None,
        "tried": len(outcome.tried),
        "failed": sum(tried.attempt.failure is not None for tried in outcome.tried),
        "reused": outcome.reused,
        "seconds": round(outcome.seconds, 2),
        "why_stopped": outcome.why_stopped,
        "guided_by": [asdict(fact) for fact in _search_facts(outcome).beliefs],
        "predicted_time": _predicted_time(outcome),
        "gain": _gain(headline(outcome)),
        "rivals": {rival.implementation: rival.reason for rival in rivals(outcome)},
    }


def _predicted_time(outcome: Outcome) -> dict[str, Any] | None:
    """Return the winner's predicted time with its band; null without measurements of its class of kernels."""
    prediction = outcome.record.prediction if outcome.record else None
    time = predicted_time(prediction, outcome.request.gpu) if prediction else None
    return asdict(time) if time else None


def _gain(first: Headline | None) -> dict[str, Any] | None:
    """Return the headline as data: gains are fractions, null if there is nothing to compare with."""
    if first is None:
        return None
    baselines = {"untuned": first.untuned, "default": first.default}
    gains = {f"over_{name}": baseline.gain if baseline else None for name, baseline in baselines.items()}
    untuned = first.untuned.implementation if first.untuned else None
    flawed = asdict(first.flawed) if first.flawed else None
    return {"evidence": first.evidence.value, "untuned": untuned, **gains, "cheaper_but_flawed": flawed}


def environment(record: TuningRecord | None) -> dict[str, str]:
    """Return what the result depends on besides the config."""
    facts = {
        "tuner": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }
    if record:
        facts |= {
            "compiler": record.identity.toolkit,
            "options": record.identity.options,
            "policy": record.identity.policy,
            "source digest": record.identity.source,
            "made": record.created,
        }
    return facts


def usage(operator: Operator[Any], problem: Any) -> str:
    """Return Python code that runs the winner: the call's tensors by name, and the options of this problem."""
    words = (_passed(operator, problem, parameter) for parameter in signature(operator.call).parameters.values())
    outputs = ", ".join(argument.name for argument in operator.outputs)
    call = f"dispatcher.{operator.name}({', '.join(filter(None, words))})"
    note = "" if operator.folder.parent == TEMPLATES else f"  # {operators.VARIABLE} says where {operator.name} is"
    return f"from tuner import dispatcher{note}\n\n{outputs} = {call}\n"


def export(operator: Operator[Any], problem: Any, gpu: GPU) -> str:
    """Return the command that exports the kernel of a problem as C++."""
    return search_command(operator, problem, gpu).replace("tuner search", "tuner render", 1) + " --standalone DIR"


def _passed(operator: Operator[Any], problem: Any, parameter: Parameter) -> str:
    """Return a parameter as written in the call; empty if the call omits it."""
    name, required = parameter.name, parameter.default is Parameter.empty
    option = getattr(problem, name, parameter.default)
    tensor = next((argument for argument in operator.arguments if argument.name == name and argument.supplied), None)
    if tensor is not None and not required:
        return f"{name}={name}" if all(tensor.shape(problem)) else ""
    if tensor is not None or option is Parameter.empty:
        return f"{name}={name}" if parameter.kind is Parameter.KEYWORD_ONLY else name
    absent = (parameter.default is None and not option) or _switched_off(problem, name)  # 0 for optional values
    passed = not absent and option != parameter.default and isinstance(option, bool | int | float | str)
    return f"{name}={option!r}" if passed else ""


def _switched_off(problem: Any, name: str) -> bool:
    """Return whether a field is unused in a problem: window_left is unused unless use_window is set."""
    switches = (field for field in statics(problem) if field.startswith("use_"))
    return any(
        name.startswith(f"{switch.removeprefix('use_')}_") and not getattr(problem, switch) for switch in switches
    )


def _search_facts(outcome: Outcome) -> SearchFacts:
    request, arm = outcome.request, winning_arm(outcome)
    return SearchFacts(
        method=request.method,
        seed=request.seed,
        budget=request.tries,
        effort=request.effort,
        stopped=outcome.why_stopped,
        seconds=outcome.seconds,
        resumed=outcome.reused,
        prior_correlation=arm.sampler.prior_correlation if arm and arm.asked else None,
        beliefs=tuple(fact for arm in outcome.bandit.arms.values() for fact in belief_facts(arm)),
    )


def belief_facts(arm: Arm) -> list[BeliefFacts]:
    """Return the sources of an implementation's prior order; empty if it is the prediction alone."""
    if not arm.asked:  # a search that asks for nothing has no beliefs
        return []
    name = arm.implementation.name
    results, random = arm.observations, arm.sampler.random
    facts = [
        BeliefFacts(name, prior.source, prior.correlation(results, random), prior in arm.kept_priors)
        for prior in arm.priors
    ]
    return facts if len(facts) > 1 else []


def _space_facts(arm: Arm) -> SpaceFacts:
    space = arm.space
    counts, estimated = space.counts(), not space.enumerated
    return SpaceFacts(arm.implementation.name, space.raw_size, len(space), counts, arm.closed_because, estimated)
