"""`tuner render`: the source of a config, to read or to compile elsewhere."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import __version__
from tuner.base.fields import formatted
from tuner.cli.config_selection import about, choose, refuse
from tuner.cli.output import ConfigOption, DbOption, GpuOption, ImplementationOption, JsonOption, emit_json
from tuner.compiler.render import render
from tuner.compiler.standalone.general import general
from tuner.compiler.standalone.launcher import Standalone
from tuner.dispatcher.config_choice import Choice
from tuner.errors import UsageError
from tuner.spec.command_line import minimal_fields
from tuner.spec.operator import Operator
from tuner.spec.problem import statics


def render_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    implementation: ImplementationOption = None,
    config: ConfigOption = None,
    target: Annotated[str, typer.Option(help="cuda, or host: what the emulator compiles")] = "cuda",
    headers: Annotated[bool, typer.Option(help="print every header it includes as well")] = False,
    standalone: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="write a .cu with kernels and a launcher, and its .h, for a C++ program"),
    ] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the CUDA source of a config, or write it with a launcher for a C++ program."""
    chosen = choose(operator, problems, gpu, implementation, config, db)
    refuse(chosen)
    if target not in ("cuda", "host"):
        raise UsageError(f"--target {target!r}: give cuda or host")
    if standalone is not None:
        if headers or target != "cuda":
            raise UsageError("--standalone writes CUDA with every header in it: leave --headers and --target out")
        write(chosen, standalone, as_json=as_json)
        return
    source = render(chosen.instance, "cuda" if target == "cuda" else "host")
    if as_json:
        emit_json({**about(chosen), "digest": source.digest, "text": source.text, "headers": dict(source.headers)})
        return
    for name, text in source.headers if headers else ():
        typer.echo(f"// ---- {name}\n{text}")
    typer.echo(source.text)


def write(chosen: Choice, folder: Path, *, as_json: bool) -> None:
    """Write NAME.h and NAME.cu, and print the compile command."""
    files = standalone(chosen)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / f"{files.name}.h": files.header(), folder / f"{files.name}.cu": files.code()}
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    if as_json:
        emit_json({**about(chosen), "files": [str(path) for path in texts], "command": files.command})
        return
    for path in texts:
        typer.echo(f"wrote {path}")
    typer.echo(f"compile it: {files.command}")


def standalone(chosen: Choice) -> Standalone:
    """Return the config as C++ for programs without this package."""
    runs, operation, arch = chosen.instance.fields(), chosen.instance.operator, chosen.gpu.arch
    fixed = {name: value for name, value in runs.problem.items() if name in statics(operation.problem)}
    fields = {name: value for name, value in minimal_fields(chosen.instance.problem).items() if name in fixed}
    words = [name if value is True else f"{name}_{value}" for name, value in fields.items()]
    about = (
        f"{operation.name}: {operation.summary}",
        f"for {formatted(fixed)}, on {arch.name}",
        f"{runs.implementation} {formatted(runs.config)}",
        f"({chosen.why}; written by kerntune {__version__})",
    )
    name = re.sub(r"\W", "_", "_".join([operation.name, *words, arch.name]))
    return Standalone(name, operation, general(chosen.instance, arch), render(chosen.instance), arch.name, about)
