"""`tuner render`, `inspect`: look at one config: its source, what it compiles to."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import typer

from tuner import arch, choice, floor
from tuner.arch import GPU
from tuner.cache import Cache
from tuner.cli.options import parse_config
from tuner.cli.output import ConfigOption, DbOption, GpuOption, ImplementationOption, JsonOption, emit_json, say, table
from tuner.cli.predicted import predicted, print_predicted
from tuner.cli.waits import as_json as waits_as_json
from tuner.cli.waits import print_waiting, waiting
from tuner.errors import NoValidConfigError, UsageError
from tuner.evaluate import Candidate, contenders, steady_mix
from tuner.floor import Standing
from tuner.lint import lint_all
from tuner.nvrtc import compile as compile_source
from tuner.operator import Implementation, Operator, to_fields
from tuner.records import Snapshot
from tuner.render import render
from tuner.result import Failed, Lint, spelled
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
    refuse(chosen)
    if target not in ("cuda", "host"):
        raise UsageError(f"--target {target!r}: give cuda or host")
    side: Literal["cuda", "host"] = "cuda" if target == "cuda" else "host"
    source = render(operator, chosen.implementation, chosen.problem, chosen.config, side)
    if as_json:
        emit_json({**about(chosen), "digest": source.digest, "text": source.text, "headers": dict(source.headers)})
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
    waits: Annotated[bool, typer.Option("--waits", help="replay the machine code: where does a warp wait?")] = False,
    log: Annotated[bool, typer.Option(help="print the compiler's whole log too")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a config and print what it uses."""
    chosen = choose(operator, problems, gpu, implementation, config, db)
    refuse(chosen)
    source = render(operator, chosen.implementation, chosen.problem, chosen.config)
    cubin = compile_source(source, Options(arch=chosen.gpu.arch.name), Cache.of("cubin"))
    if isinstance(cubin, Failed):
        typer.echo(cubin.log, err=True)
        raise NoValidConfigError(f"it does not compile: {cubin.reason}")
    plan = chosen.implementation.plan(chosen.problem, chosen.config)
    rows = []
    for launch in plan.launches:
        usage = cubin.entries[launch.entry]
        fit = occupancy(usage, launch, chosen.gpu.arch)
        rows.append({"kernel": launch.entry, **asdict(launch), **asdict(usage), **asdict(fit)})
    mixes = {launch.entry: _rounded(steady_mix(cubin, launch.entry)) for launch in plan.launches}
    found = lint_all(cubin)
    candidate = Candidate(chosen.implementation, chosen.config)
    costs = predicted(cubin, operator, candidate, chosen.problem, chosen.gpu)
    replayed = waiting(cubin, plan.launches, chosen.gpu) if waits else ()
    if as_json:
        compiled = {"main_loop": mixes, "sass_digest": cubin.sass_digest, "lint": asdict(found)}
        ranked = {"predicted": [{"kernel": name, **asdict(each)} for name, each in costs]}
        told = {"waits": waits_as_json(replayed)} if waits else {}
        emit_json({**about(chosen), "kernels": rows, **compiled, **_declared(chosen), **ranked, **told})
        return
    describe(chosen)
    _print_kernels(f"{operator.name}/{chosen.implementation.name} for {chosen.gpu.arch.name}, {cubin.toolkit}", rows)
    _print_mixes(mixes)
    _print_work(floor.standings(operator, chosen.implementation, chosen.problem, chosen.config, chosen.gpu), chosen)
    print_predicted(costs)
    if waits:
        print_waiting(replayed)
    _print_lint(found)
    if log:
        typer.echo(cubin.log)
    for entry in cubin.entries if show_sass else ():
        typer.echo(cubin.disassemble(entry))


def _declared(chosen: Chosen) -> dict[str, Any]:
    """What each launch declares to do, then all together, and the floor."""
    launches = floor.standings(chosen.operator, chosen.implementation, chosen.problem, chosen.config, chosen.gpu)
    work = [asdict(each) for each in (*launches, floor.together(launches))]
    return {"work": work, "floor": asdict(chosen.operator.cost(chosen.problem))}


def _print_kernels(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    tensor = ("tensor columns",) if any(row["tensor_columns"] for row in rows) else ()
    counts = ("threads", "registers", "spill stores", "spill loads", "shared", *tensor, "CTAs/SM")
    table(
        title,
        ("kernel", *counts, "limited by", "grid"),
        [
            (
                row["kernel"],
                row["threads"],
                row["registers"],
                row["spill_stores"],
                row["spill_loads"],
                row["smem_bytes"] + row["static_shared"],
                *(row["tensor_columns"] for _ in tensor),
                row["ctas"],
                row["limiter"],
                "×".join(map(str, row["grid"])),
            )
            for row in rows
        ],
        right=counts,
    )


def _print_mixes(mixes: Mapping[str, Mapping[str, float]]) -> None:
    classes = tuple(dict.fromkeys(name for mix in mixes.values() for name in mix))
    counts = [(entry, *(mix.get(name, 0) for name in classes)) for entry, mix in mixes.items()]
    table(
        "instructions a warp in a pass of the main loop, along its common way; in the whole kernel where there is none",
        ("kernel", *classes),
        counts,
        right=classes,
    )


def _print_work(launches: Sequence[Standing], chosen: Chosen) -> None:
    """What each launch declares to do, by items of the problem, and how that compares with the least."""
    if not chosen.implementation.declared:
        typer.echo(f"work: not declared by {chosen.implementation.name}.py; the prediction counts machine code instead")
        return
    least = chosen.operator.cost(chosen.problem)
    names = ("kernel", "DRAM bytes", "× least", "L2 bytes", "mma", "× needed", "chain", "serial in a step")
    whole = (floor.together(launches),) if len(launches) > 1 else ()
    table(
        f"declared work a {least.item}; least: {least.bytes / least.items:.6g} bytes, "
        f"{least.flops / floor.MMA_FLOPS / least.items:.4g} mma",
        names,
        [
            (
                each.kernel,
                f"{each.dram_bytes / least.items:.6g}",
                f"{each.bytes_ratio:.3f}",
                f"{each.l2_bytes / least.items:.6g}",
                f"{each.mma / least.items:.4g}",
                f"{each.mma_ratio:.3f}",
                f"{each.steps:g} steps",
                f"{each.step_mma:g} mma, {each.step_other:g} others" if each.step_mma + each.step_other else "",
            )
            for each in (*launches, *whole)
        ],
        right=names[1:7],
    )


def _print_lint(found: Lint) -> None:
    typer.echo("machine code: " + ("no rule is broken" if found.ok else "ranks behind what keeps the rules"))
    for each in found.failures:
        typer.echo(f"  BROKEN {each}")
    for each in found.unchecked:
        typer.echo(f"  {each}")


def _rounded(mix: Mapping[str, float]) -> dict[str, float]:
    return {name: round(count, 2) for name, count in mix.items()}


def refuse(chosen: Chosen) -> None:
    """Raises UsageError where the config is not one of its space."""
    space = chosen.implementation.space(chosen.problem, chosen.gpu.arch)
    if reasons := space.refusals(chosen.config):
        raise UsageError(f"{chosen.implementation.name} refuses this config: {'; '.join(reasons)} ({chosen.why})")


def about(chosen: Chosen) -> dict[str, Any]:
    """What was chosen, as JSON has it."""
    return {
        "operator": chosen.operator.name,
        "implementation": chosen.implementation.name,
        "problem": to_fields(chosen.problem),
        "gpu": chosen.gpu.name,
        "config": to_fields(chosen.config),
        "why": chosen.why,
    }


def describe(chosen: Chosen) -> None:
    """Say what was chosen."""
    say(f"{chosen.implementation.name} {spelled(to_fields(chosen.config))} ({chosen.why})")
