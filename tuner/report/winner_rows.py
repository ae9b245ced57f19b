"""The winner of a search as labels and values, for a terminal."""

from tuner.base.canonical_json import decode
from tuner.base.fields import fields_from, formatted
from tuner.report import BeliefFacts
from tuner.report.headline import headline
from tuner.report.notation import counted, reasons, worst_case
from tuner.report.summary import belief_facts, default_tried, rivals, winner, winning_arm, work_facts
from tuner.results.attempt import Resources
from tuner.results.ranking import passed, rank
from tuner.results.record import TuningRecord
from tuner.search.study import Outcome


def winner_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the record, its position relative to the others, and the course of the search."""
    record, won = outcome.record, winner(outcome)
    assert record is not None and won is not None
    prediction = record.prediction
    first = headline(outcome)
    rows = [
        *([("gain", sentence) for sentence in (first.gain, first.warning) if sentence] if first else []),
        ("implementation", record.identity.implementation),
        ("config", formatted(record.config)),
        ("resources", _resources(record)),
        ("machine code", _lint(record.resources)),
        ("verified", f"{record.verdict.where}: {counted(len(record.verdict.checks), 'run', 'runs')}"),
        *_errors(record),
        *([("not seen", record.verdict.unseen)] if record.verdict.unseen else []),
        ("margin", f"{_to_runner_up(outcome, record)}{_to_default(outcome)}"),
    ]
    if prediction is not None:
        rows.append(("binds", f"{prediction.bottleneck} (by {prediction.model})"))
    rows += [(f"against {rival.implementation}", rival.reason) for rival in rivals(outcome)]
    if record.measurement is not None:
        m = record.measurement
        rows.append(("time", f"{m.time_us:.2f} us [{m.low_us:.2f}, {m.high_us:.2f}], {m.samples} samples"))
        if m.cycles:
            held = f", held down by {reasons(m.throttle)}" if m.throttle else ""
            rows.append(("cycles", f"{m.cycles:,.0f} at {m.sm_mhz} MHz, {m.temperature_c} °C{held}"))
        if m.floor_us:
            rows.append(("launch floor", f"{m.floor_us:.2f} us, of a kernel that does nothing"))
    rows += [(fact.label, f"{fact.value} {fact.note}") for fact in work_facts(won, outcome.request.gpu, record)]
    rows.append(("tried", _tried(outcome)))
    rows += [("guided by", _belief_words(fact)) for fact in _winning_beliefs(outcome)]
    rows.append(("stopped", outcome.why_stopped))
    return rows


def _tried(outcome: Outcome) -> str:
    """Format `128 in 116 s`; for a resumed search, the time is that of the new attempts."""
    new = len(outcome.tried) - outcome.reused
    if not outcome.reused:
        return f"{new} in {outcome.seconds:.0f} s"
    return f"{new} new in {outcome.seconds:.0f} s, and {outcome.reused} stored by earlier searches"


def _winning_beliefs(outcome: Outcome) -> list[BeliefFacts]:
    arm = winning_arm(outcome)
    return belief_facts(arm) if arm else []


def _lint(used: Resources) -> str:
    """Return the result of the rules on a kernel's machine code."""
    if used.lint is None:
        return "; ".join(used.flaws) or "not checked"
    return "; ".join((*used.lint.failures, *used.lint.unchecked)) or "no rule is broken"


def _resources(record: TuningRecord) -> str:
    used = record.resources
    spills = "no spills" if not used.spill_bytes else f"{used.spill_bytes} B spilled"
    return (
        f"{used.registers} registers, {spills}, {_memory(used.smem_bytes)} shared memory, "
        f"{used.threads} threads, {counted(used.ctas_per_sm, 'CTA', 'CTAs')} per SM (limited by {used.limiter})"
    )


def _errors(record: TuningRecord) -> list[tuple[str, str]]:
    """Return, for each output, the error with the largest fraction of its limit, and the case."""
    problem = fields_from(decode(record.identity.problem))
    cases = [(error, worst_case(error, problem)) for error in record.verdict.errors]
    return [
        (f"error of {e.name}", f"{e.error:.1e} of {e.allowed:.1e} allowed{f', on {case}' if case else ''}")
        for e, case in cases
    ]


def _to_runner_up(outcome: Outcome, record: TuningRecord) -> str:
    """Return the margin; 0 is a tie, or there is no runner-up."""
    if record.margin or len(passed(outcome.tried)) > 1:
        return f"{record.margin:.1%} to the runner-up"
    if len(outcome.tried) == 1:
        return "nothing else was tried"
    works = [tried for tried in outcome.tried if tried.attempt.value is not None and not tried.wrong]
    alike = len(works) > 1 and len(rank(works)) == 1
    return "all that works is the same machine code" if alike else "nothing else passed its checks"


def _to_default(outcome: Outcome) -> str:
    default, record = default_tried(outcome), outcome.record
    value = default.attempt.value if default else None
    if default is None or value is None or record is None:
        return ""
    own = record.measurement.time_us if record.measurement else record.prediction.cost if record.prediction else None
    if dict(default.attempt.config) == dict(record.config):
        return ", and it is the default"
    if default.wrong:
        return "; the default is wrong"
    return f", {value / own - 1:.1%} to the default" if own else ""


def _belief_words(fact: BeliefFacts) -> str:
    """Format `history of H100: rank correlation 0.80, kept`."""
    rank = "too few results to judge" if fact.correlation is None else f"rank correlation {fact.correlation:.2f}"
    return f"{fact.source}: {rank}, {'kept' if fact.kept else 'dropped'}"


def _memory(nbytes: int) -> str:
    return f"{nbytes / 1024:.1f} KiB" if nbytes >= 1024 else f"{nbytes} bytes"
