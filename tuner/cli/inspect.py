"""`tuner render`, `inspect`, `verify`: look at one config: its source, what it compiles to, whether it is right."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import typer

from tuner import arch, check, choice
from tuner.arch import GPU
from tuner.cache import Cache
from tuner.cli.options import parse_config
from tuner.cli.output import ConfigOption, DbOption, GpuOption, ImplementationOption, JsonOption, emit_json, say, table
from tuner.errors import NoValidConfigError, UsageError
from tuner.evaluate import contenders, steady_mix
from tuner.nvrtc import compile as compile_source
from tuner.operator import Implementation, Operator, to_fields
from tuner.records import Snapshot
from tuner.render import render
from tuner.result import Failed, Verdict
from tuner.toolkit import Options
from tuner.usage import occupancy


@dataclass(frozen=True)
class Chosen:
    """A config of one problem on one GPU, and how it came."""

    operator: Operator[Any]
    problem: Any
    gpu: GPU
    implementation: Implementation[Any, Any]
    config: Any
    why: str


def choose(
    operator: Operator[Any],
    problems: Sequence[Any],
    gpu: str,
    implementation: str | None,
    settings: list[str] | None,
    db: str | None,
) -> Chosen:
    """The config that a command is about: what the dispatcher would serve, with `settings` over it."""
    if len(problems) != 1:
        raise UsageError(f"this command looks at one problem, and {len(problems)} were given")
    (problem,), target = problems, arch.gpu(gpu)
    served = choice.choose(operator, problem, [target], snapshot(db))
    if implementation not in (None, served.implementation.name):
        (wanted,) = contenders(operator, problem, target, implementation)
        chosen = Chosen(operator, problem, target, wanted, wanted.default(problem, target.arch), "its default config")
    else:
        chosen = Chosen(operator, problem, target, served.implementation, served.config, served.why)
    if settings:
        config = parse_config(chosen.implementation.config, chosen.config, settings)
        return replace(chosen, config=config, why="given by hand")
    return chosen


def snapshot(db: str | None) -> Snapshot:
    """The records of one database, or of every place where the dispatcher looks."""
    return Snapshot.load([db] if db else None)


def render_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    implementation: ImplementationOption = None,
    config: ConfigOption = None,
    target: Annotated[str, typer.Option(help="cuda, or host: what the emulator compiles")] = "cuda",
    headers: Annotated[bool, typer.Option(help="print every header it includes as well")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the CUDA source of a config."""
    chosen = choose(operator, problems, gpu, implementation, config, db)
    _refuse(chosen)
    if target not in ("cuda", "host"):
        raise UsageError(f"--target {target!r}: give cuda or host")
    side: Literal["cuda", "host"] = "cuda" if target == "cuda" else "host"
    source = render(operator, chosen.implementation, chosen.problem, chosen.config, side)
    if as_json:
        emit_json({**_about(chosen), "digest": source.digest, "text": source.text, "headers": dict(source.headers)})
        return
    for name, text in source.headers if headers else ():
        typer.echo(f"// ---- {name}\n{text}")
    typer.echo(source.text)


def inspect_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    implementation: ImplementationOption = None,
    config: ConfigOption = None,
    show_sass: Annotated[bool, typer.Option("--sass", help="print the machine code too (needs nvdisasm)")] = False,
    log: Annotated[bool, typer.Option(help="print the compiler's whole log too")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a config and print what it uses."""
    chosen = choose(operator, problems, gpu, implementation, config, db)
    _refuse(chosen)
    source = render(operator, chosen.implementation, chosen.problem, chosen.config)
    cubin = compile_source(source, Options(arch=chosen.gpu.arch.name), Cache.of("cubin"))
    if isinstance(cubin, Failed):
        typer.echo(cubin.log, err=True)
        raise NoValidConfigError(f"it does not compile: {cubin.reason}")
    plan = chosen.implementation.plan(chosen.problem, chosen.config)
    rows = []
    for launch in plan.launches:
        usage = cubin.entries[launch.entry]
        fit = occupancy(usage, launch.threads, launch.smem_bytes, chosen.gpu.arch)
        rows.append({"kernel": launch.entry, **asdict(launch), **asdict(usage), **asdict(fit)})
    mix = {name: round(count, 2) for name, count in steady_mix(cubin).items()}
    if as_json:
        emit_json({**_about(chosen), "kernels": rows, "main_loop": mix, "sass_digest": cubin.sass_digest})
        return
    _describe(chosen)
    names = ("kernel", "threads", "registers", "spill stores", "spill loads", "shared", "CTAs/SM", "limited by", "grid")
    table(
        f"{operator.name}/{chosen.implementation.name} for {chosen.gpu.arch.name}, {cubin.toolkit}",
        names,
        [
            (
                row["kernel"],
                row["threads"],
                row["registers"],
                row["spill_stores"],
                row["spill_loads"],
                row["smem_bytes"] + row["static_shared"],
                row["ctas"],
                row["limiter"],
                "×".join(map(str, row["grid"])),
            )
            for row in rows
        ],
        right=names[1:7],
    )
    table("instructions a warp in the main loop", ("class", "count"), list(mix.items()), right=("count",))
    if log:
        typer.echo(cubin.log)
    for entry in cubin.entries if show_sass else ():
        typer.echo(cubin.disassemble(entry))


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
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a config on the emulator over the operator's edge cases and judge it against float64."""
    chosen = choose(operator, problems, gpu, implementation, config, db)
    _refuse(chosen)
    modes = check.PLAIN + (check.CHECKED if checked else ())
    data = to_fields(chosen.problem), to_fields(chosen.config)
    job = check.Job(operator.name, chosen.implementation.name, *data, modes, thorough)
    with check.Checker(workers=1) as checker:
        ((_, verdict),) = checker.check_many([job])
    if as_json:
        emit_json({**_about(chosen), "ok": verdict.ok, **asdict(verdict)})
    else:
        _describe(chosen)
        _print_verdict(verdict)
    if not verdict.ok:
        raise NoValidConfigError(verdict.reason)


def _print_verdict(verdict: Verdict) -> None:
    for done in verdict.checks:
        typer.echo(f"  ran {done}")
    names = ("output", "RMSE ratio", "limit", "largest error", "limit ")
    rows = [
        (e.name, f"{e.rmse_ratio:.3g}", f"{e.limit:.3g}", f"{e.max_abs:.3g}", f"{e.max_limit:.3g}")
        for e in verdict.errors
    ]
    table("errors against float64, the worst over all cases", names, rows, right=names[1:])
    for finding in verdict.findings:
        typer.echo(f"  FOUND {finding}")
    typer.echo("ok" if verdict.ok else "WRONG")


def _refuse(chosen: Chosen) -> None:
    space = chosen.implementation.space(chosen.problem, chosen.gpu.arch)
    if reasons := space.refusals(chosen.config):
        raise UsageError(f"{chosen.implementation.name} refuses this config: {'; '.join(reasons)}")


def _about(chosen: Chosen) -> dict[str, Any]:
    return {
        "operator": chosen.operator.name,
        "implementation": chosen.implementation.name,
        "problem": to_fields(chosen.problem),
        "gpu": chosen.gpu.name,
        "config": to_fields(chosen.config),
        "why": chosen.why,
    }


def _describe(chosen: Chosen) -> None:
    spelled = " ".join(f"{name}={value}" for name, value in to_fields(chosen.config).items())
    say(f"{chosen.implementation.name} {spelled} ({chosen.why})")
