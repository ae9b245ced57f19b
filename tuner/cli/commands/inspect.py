"""`tuner inspect`: resources, work and predicted cost of a compiled config."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from tuner.arch import GPU, MMA_FLOPS
from tuner.cli.commands.inspect_counted import as_json as counted_as_json
from tuner.cli.commands.inspect_counted import print_counted
from tuner.cli.commands.inspect_timeline import as_json as timeline_as_json
from tuner.cli.commands.inspect_timeline import print_timeline
from tuner.cli.commands.inspect_waits import as_json as waits_as_json
from tuner.cli.commands.inspect_waits import print_waiting, waiting
from tuner.cli.config_selection import about, choose, compiled, describe, refuse
from tuner.cli.output import ConfigOption, DbOption, GpuOption, ImplementationOption, JsonOption, emit_json, table
from tuner.compiler.cubin import Cubin
from tuner.compiler.lint import lint_all
from tuner.compiler.sass.paths import steady_mix
from tuner.compiler.usage import occupancy
from tuner.dispatcher.config_choice import Choice
from tuner.errors import NoValidConfigError
from tuner.evaluate.predict import least_work
from tuner.evaluate.predict.compiled import predict_config, predict_launches, predict_undeclared
from tuner.evaluate.predict.cost import MODEL, TERMS, in_turn
from tuner.evaluate.predict.least_work import DeclaredLaunch
from tuner.evaluate.predict.predicted_time import UNJUDGED, predicted_time
from tuner.evaluate.predict.timeline import Track, timeline
from tuner.results.attempt import Failed, Lint, Prediction
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator

_LEAST = 0.005  # fraction of the total cost; smaller terms are not printed

Named = tuple[str, Prediction]  # (kernel name or total, prediction)


def inspect_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    implementation: ImplementationOption = None,
    config: ConfigOption = None,
    show_sass: Annotated[bool, typer.Option("--sass", help="print the machine code too (needs nvdisasm)")] = False,
    waits: Annotated[bool, typer.Option("--waits", help="replay the machine code: where does a warp wait?")] = False,
    show_timeline: Annotated[
        bool, typer.Option("--timeline/--no-timeline", help="what a warp does when, of this config and of the default")
    ] = True,
    log: Annotated[bool, typer.Option(help="print the compiler's whole log too")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a config and print its resources and predicted cost."""
    chosen = choose(operator, problems, gpu, implementation, config, db)
    refuse(chosen)
    cubin = compiled(chosen)
    if isinstance(cubin, Failed):
        typer.echo(cubin.log, err=True)
        raise NoValidConfigError(f"it does not compile: {cubin.reason}")
    launches = chosen.instance.plan().launches
    mixes = {launch.entry: _rounded(steady_mix(cubin.instructions(launch.entry))) for launch in launches}
    lint, work = lint_all(cubin), _work(chosen)
    costs = _predicted(chosen.instance, chosen.gpu, cubin)
    counted = (
        () if chosen.instance.implementation.declares_work else predict_undeclared(chosen.instance, chosen.gpu, cubin)
    )
    time = predicted_time(predict_config(chosen.instance, chosen.gpu, cubin), chosen.gpu)
    replayed = waiting(cubin, launches, chosen.gpu) if waits else ()
    tracks = _timelines(chosen, cubin) if show_timeline else {}
    if as_json:
        code = {"main_loop": mixes, "sass_digest": cubin.sass_digest, "lint": asdict(lint)}
        least = {"work": [asdict(launch) for launch in work], "floor": asdict(operator.cost(chosen.instance.problem))}
        ranked = {"predicted": [{"kernel": name, **asdict(prediction)} for name, prediction in costs]}
        extra: dict[str, Any] = {"waits": waits_as_json(replayed)} if waits else {}
        extra |= {"timelines": {name: timeline_as_json(of) for name, of in tracks.items()}} if tracks else {}
        extra |= {"counted": counted_as_json(counted)} if counted else {}
        extra |= {"predicted_time": asdict(time) if time else None}
        emit_json({**about(chosen), "kernels": _used(chosen, cubin), **code, **least, **ranked, **extra})
        return
    describe(chosen)
    title = f"{chosen.instance.name} for {chosen.gpu.arch.name}, {cubin.toolkit}"
    _print_kernels(title, _used(chosen, cubin))
    _print_mixes(mixes)
    _print_work(work, chosen)
    print_counted(counted)
    _print_predicted(costs)
    typer.echo(f"predicted time on {chosen.gpu.device.name} at its boost clock: {time or UNJUDGED}")
    if waits:
        print_waiting(replayed)
    for name, of in tracks.items():
        print_timeline(name, of)
    _print_lint(lint)
    if log:
        typer.echo(cubin.log)
    for entry in cubin.entries if show_sass else ():
        typer.echo(cubin.disassemble(entry))


def _timelines(chosen: Choice, cubin: Cubin) -> dict[str, tuple[Track, ...]]:
    """Return, by name, the config and, if it differs, its implementation's default."""
    instance, target = chosen.instance, chosen.gpu
    default = Instance.default(instance.operator, instance.implementation, instance.problem, target.arch)
    configs = {"this config": (instance, cubin)}
    if default.config != instance.config:
        other = compiled(replace(chosen, instance=default))
        configs |= {} if isinstance(other, Failed) else {"the default": (default, other)}
    return {name: timeline(code, of.plan().launches, target) for name, (of, code) in configs.items()}


def _used(chosen: Choice, cubin: Cubin) -> list[dict[str, Any]]:
    """Return, for each launch, the resources of its kernel and the number of blocks per SM."""
    rows = []
    for launch in chosen.instance.plan().launches:
        usage = cubin.entries[launch.entry]
        fit = occupancy(usage, launch, chosen.gpu.arch)
        rows.append({"kernel": launch.entry, **asdict(launch), **asdict(usage), **asdict(fit)})
    return rows


def _work(chosen: Choice) -> tuple[DeclaredLaunch, ...]:
    """Return the declared work of each launch, then the total."""
    launches = least_work.declared(chosen.instance, chosen.gpu)
    return (*launches, least_work.total(launches))


def _print_kernels(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    tensor = ("tensor columns",) if any(row["tensor_columns"] for row in rows) else ()
    counts = ("threads", "registers", "stack", "spill stores", "spill loads", "shared", *tensor, "CTAs/SM")
    table(
        title,
        ("kernel", *counts, "limited by", "grid"),
        [
            (
                row["kernel"],
                row["threads"],
                row["registers"],
                row["stack"],
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
        "instructions per warp in a pass of the main loop, along its common path; in the whole kernel if it has none",
        ("kernel", *classes),
        counts,
        right=classes,
    )


def _print_work(work: Sequence[DeclaredLaunch], chosen: Choice) -> None:
    """Print the declared work of each launch per item of the problem, and relative to the minimum."""
    operator, implementation = chosen.instance.operator, chosen.instance.implementation
    if not implementation.declares_work:
        typer.echo(f"work: not declared by {implementation.name}.py; the prediction counts what blocks execute instead")
        return
    least = operator.cost(chosen.instance.problem)
    names = ("kernel", "DRAM bytes", "× least", "L2 bytes", "mma", "× needed", "chain", "serial in a step")
    table(
        f"declared work a {least.item}; least: {least.bytes / least.items:.6g} bytes, "
        f"{least.flops / MMA_FLOPS / least.items:.4g} mma",
        names,
        [
            (
                launch.kernel,
                f"{launch.dram_bytes / least.items:.6g}",
                f"{launch.bytes_ratio:.3f}",
                f"{launch.l2_bytes / least.items:.6g}",
                f"{launch.mma / least.items:.4g}",
                f"{launch.mma_ratio:.3f}",
                f"{launch.steps:g} steps",
                f"{launch.step_mma:g} mma, {launch.step_other:g} others" if launch.step_mma + launch.step_other else "",
            )
            for launch in (work if len(work) > 2 else work[:1])  # for a single launch, the total is the same
        ],
        right=names[1:7],
    )


def _predicted(instance: Instance, gpu: GPU, cubin: Cubin) -> tuple[Named, ...]:
    """Return the predicted cost of each launch and, for several, of all in sequence."""
    launches = predict_launches(instance, gpu, cubin)
    total = [("together", in_turn([prediction for _, prediction in launches]))] if len(launches) > 1 else []
    return (*launches, *total)


def _print_predicted(predictions: Sequence[Named]) -> None:
    """Print one row per term, the largest first: its cost alone relative to the total."""
    total, names = predictions[-1][1], [name for name, _ in predictions]
    terms = {term: float(cost) / total.cost for term, cost in total.terms.items()}
    heaviest = sorted((term for term in terms if terms[term] > _LEAST), key=lambda term: -terms[term])
    table(
        f"predicted cost ({MODEL}): a rank, not a time. Terms overlap, so that they do not add up; "
        f"{total.bottleneck} binds",
        ("term", *names, "what it stands for"),
        [
            *(
                (term, *(_share(prediction.terms.get(term, 0.0), total) for _, prediction in predictions), TERMS[term])
                for term in heaviest
            ),
            ("cost", *(_share(prediction.cost, total) for _, prediction in predictions), "of all terms together"),
        ],
        right=names,
    )


def _share(cost: float | str, total: Prediction) -> str:
    return f"{float(cost) / total.cost:.0%}"


def _print_lint(lint: Lint) -> None:
    typer.echo("machine code: " + ("no rule is broken" if lint.ok else "ranks behind what keeps the rules"))
    for failure in lint.failures:
        typer.echo(f"  BROKEN {failure}")
    for failure in lint.unchecked:
        typer.echo(f"  {failure}")


def _rounded(mix: Mapping[str, float]) -> dict[str, float]:
    return {name: round(count, 2) for name, count in mix.items()}
