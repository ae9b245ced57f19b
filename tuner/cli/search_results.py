"""The results of a search on stdout: the winner of one problem, or a table and the portfolios of several."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from tuner.base.fields import Fields, formatted
from tuner.cli.output import emit_json, listing, table
from tuner.report import summary
from tuner.report.notation import counted
from tuner.report.winner_rows import winner_rows
from tuner.results.attempt import Evidence
from tuner.results.codec import to_data
from tuner.results.record import TuningRecord
from tuner.search import study
from tuner.search.many_problems import Campaign
from tuner.search.portfolio import Family
from tuner.spec.command_line import minimal_fields
from tuner.spec.problem import to_fields

_WINNERS = ("problem", "winner", "config", "margin", "tried")
_NUMBERS = ("margin", "tried")
_REASONS = 3  # maximum number of reasons for a failed search; the report has all


def title(request: study.SearchRequest) -> str:
    """Return the problem and the GPU, without fields that have their defaults."""
    gpu, device = request.gpu, request.gpu.device.name
    assumed = "" if gpu.name == device else f" (predictions assume {device})"
    return f"{problem_title(request.operator.name, request.problem)} on {gpu.name}{assumed}"


def problem_title(operator: str, problem: Any) -> str:
    """Format an operator and the non-default fields of a problem: `flash_attention head_dim=72 causal=True`."""
    return f"{operator} {formatted(minimal_fields(problem))}".rstrip()


def show(result: Campaign, report: Path, *, as_json: bool) -> None:
    """Print all results, in the order of the given problems."""
    if as_json:
        searches = [summary.data(outcome) for outcome in result.outcomes]
        portfolios = [to_data(family) for family in result.families]
        emit_json({"searches": searches, "portfolios": portfolios, "report": str(report)})
        return
    if len(result.outcomes) > 1:
        _show_several(result.outcomes)
    for family in result.families:
        _show_family(family)
    if len(result.outcomes) == 1:
        _show_winner(result.outcomes[0])
    typer.echo(f"report: {report}")


def _show_winner(outcome: study.Outcome) -> None:
    record, request = outcome.record, outcome.request
    tried = f"{len(outcome.tried)} tried" + (f", {outcome.reused} of them earlier" if outcome.reused else "")
    if record is None:
        listing(f"{title(request)}: nothing valid found ({tried}; {outcome.why_stopped})", list(_failures(outcome)))
        return
    listing(f"{title(request)}: winner ({_standing(record)})", winner_rows(outcome))


def _failures(outcome: study.Outcome) -> Iterator[tuple[str, str]]:
    """Yield why nothing was found: the number of configs per failure with an example, the most frequent first."""
    for arm in outcome.bandit.arms.values():
        if not len(arm.space):
            refusing = "; ".join(f"{reason!r} refuses {count}" for reason, count in arm.space.counts())
            yield "no config", f"of {arm.implementation.name} is left by its constraints: {refusing}"
    examples: dict[str, list[str]] = {}
    for tried in outcome.tried:
        if reason := _failure(tried):
            name, config = tried.instance.implementation.name, formatted(tried.attempt.config)
            examples.setdefault(reason, []).append(f"{name} {config}")
    for reason, configs in sorted(examples.items(), key=lambda item: -len(item[1]))[:_REASONS]:
        yield f"{len(configs)} failed", f"{reason} ({configs[0]})"


def _failure(tried: study.Tried) -> str:
    if tried.attempt.failure is not None:
        return f"{tried.attempt.failure.stage.value}: {tried.attempt.failure.reason}"
    return f"check: {tried.verdict.reason}" if tried.verdict and tried.wrong else ""


def _standing(record: TuningRecord) -> str:
    measured = record.evidence is Evidence.MEASURED
    return "measured" if measured else f"predicted, not validated on {record.identity.gpu}"


def _show_several(outcomes: Sequence[study.Outcome]) -> None:
    request = outcomes[0].request
    standing = next((_standing(outcome.record) for outcome in outcomes if outcome.record), "none was found")
    problems = _told_apart([to_fields(outcome.request.problem) for outcome in outcomes])
    rows = [_row(problem, outcome) for problem, outcome in zip(problems, outcomes, strict=True)]
    table(f"{request.operator.name} on {request.gpu.name}: winners ({standing})", _WINNERS, rows, right=_NUMBERS)


def _row(problem: str, outcome: study.Outcome) -> tuple[str, ...]:
    record, tried = outcome.record, str(len(outcome.tried))
    if record is None:
        return problem, "nothing valid found", outcome.why_stopped, "", tried
    name, config = record.identity.implementation, formatted(record.config)
    return problem, name, config, f"{record.margin:.1%}", tried


def _show_family(family: Family) -> None:
    typer.echo(f"portfolio for {formatted(family.statics) or 'the defaults'}: {described(family)}")
    for number, (name, config) in enumerate(family.members, start=1):
        typer.echo(f"  {number}: {name} {formatted(config)}")
    problems = _told_apart([served.problem for served in family.places])
    kind = family.evidence.value
    columns = ("problem", "served by", f"behind its best ({kind})", f"if it were not listed ({kind})")
    rows = [
        (
            problem,
            "" if served.member is None else served.member + 1,
            _share(served.regret),
            _share(served.unlisted_regret),
        )
        for problem, served in zip(problems, family.places, strict=True)
    ]
    table("", columns, rows, right=columns[1:])


def described(family: Family) -> str:
    """Return the size of a portfolio, and its regret."""
    worst = "not every problem is served" if family.worst is None else f"at most {family.worst:.1%} behind the best"
    return f"{counted(len(family.members), 'config', 'configs')} for {len(family.places)} problems, {worst}"


def _share(regret: float | None) -> str:
    return "" if regret is None else f"{regret:.1%}"


def _told_apart(problems: Sequence[Fields]) -> list[str]:
    """Return each problem by the fields in which the problems differ."""
    varying = [name for name in problems[0] if len({problem[name] for problem in problems}) > 1]
    return [formatted({name: problem[name] for name in varying}) for problem in problems]
