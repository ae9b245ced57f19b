"""`tuner verify`: check a config's results and its implementation's declarations."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tuner.backends.emulator.pool import PATIENCE_S
from tuner.base.fields import Fields
from tuner.cli.config_selection import about, choose, compiled, describe, refuse
from tuner.cli.output import (
    CheckSecondsOption,
    ConfigOption,
    DbOption,
    GpuOption,
    ImplementationOption,
    JsonOption,
    emit_json,
    say,
    table,
)
from tuner.dispatcher.config_choice import Choice
from tuner.errors import MachineError, NoValidConfigError
from tuner.evaluate.check import checker as check
from tuner.evaluate.check.declarations import broken
from tuner.evaluate.check.on_ptx import check_ptx
from tuner.evaluate.predict.compiled import resources_of
from tuner.report.notation import worst_case
from tuner.results.attempt import Failed
from tuner.results.verdict import Verdict
from tuner.spec.operator import Operator


def verify_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption = "sm_80",
    implementation: ImplementationOption = None,
    config: ConfigOption = None,
    checked: Annotated[
        bool, typer.Option("--checked/--plain", help="look for races and uninitialised reads too")
    ] = True,
    thorough: Annotated[bool, typer.Option(help="every mode on every edge case")] = False,
    ptx: Annotated[bool, typer.Option(help="also execute the compiler's PTX for the GPU, on every edge case")] = False,
    check_seconds: CheckSecondsOption = PATIENCE_S,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a config on the emulator over the operator's edge cases, judge it against float64, compile it for the GPU.

    What its implementation has checked on PTX runs on the machine for that instead.
    """
    chosen = choose(operator, problems, gpu, implementation, config, db)
    refuse(chosen)
    modes = check.PLAIN + (check.CHECKED if checked else ())
    job = check.Job(chosen.instance.fields(), modes, thorough, chosen.gpu.arch.name)
    with check.Checker(1, check_seconds) as checker:
        ((_, verdict),) = checker.check_many([job])
    ptx = ptx and chosen.instance.implementation.checked_on != "ptx"
    verdicts = (verdict, check_ptx(job, chosen.gpu.arch)) if ptx else (verdict,)
    promises = (*broken(chosen.instance, chosen.gpu), *_not_launched(chosen))
    wrong = [result.reason for result in verdicts if not result.ok] + list(promises)
    if as_json:
        second = {"ptx": asdict(verdicts[-1])} if ptx else {}
        emit_json({**about(chosen), "ok": not wrong, **asdict(verdict), "broken": promises, **second})
    else:
        describe(chosen)
        for result in verdicts:
            _print_verdict(result, chosen.instance.fields().problem)
        for promise in promises:
            typer.echo(f"  BROKEN {promise}")
        typer.echo("WRONG" if wrong else "ok")
    if wrong:
        raise NoValidConfigError(wrong[0])


def _not_launched(chosen: Choice) -> tuple[str, ...]:
    """Return why a GPU would not run the config, according to the compiler; empty without a compiler."""
    try:
        cubin = compiled(chosen)
    except MachineError as error:
        say(f"not compiled for {chosen.gpu.arch.name}: {error}")
        return ()
    if isinstance(cubin, Failed):
        return (f"it does not compile for {chosen.gpu.arch.name}: {cubin.reason}",)
    resources = resources_of(cubin, chosen.instance.plan(), chosen.gpu)
    return () if resources.ctas_per_sm else (f"not one block fits an SM of {chosen.gpu.name}: {resources.limiter}",)


def _print_verdict(verdict: Verdict, problem: Fields) -> None:
    typer.echo(f"on the {verdict.where}{f' ({verdict.unseen})' if verdict.unseen else ''}:")
    for line in verdict.checks:
        typer.echo(f"  ran {line}")
    names = ("output", "RMSE ratio", "limit", "largest error", "limit ", "on")
    rows = [
        (e.name, f"{e.error:.3g}", f"{e.allowed:.3g}", f"{e.max_abs:.3g}", f"{e.max_limit:.3g}", worst_case(e, problem))
        for e in verdict.errors
    ]
    table(f"errors against float64 ({verdict.where}), the worst over all cases", names, rows, right=names[1:5])
    for finding in verdict.findings:
        typer.echo(f"  FOUND {finding}")
