"""`tuner import`: an operator's folder from a Kernel Tuner script or a T1 file, or history from an Optuna study."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tuner.cli.commands.import_study import import_study
from tuner.cli.commands.new import check_name, next_steps
from tuner.cli.output import DbOption, literal, say
from tuner.errors import UsageError
from tuner.foreign import script, t1
from tuner.foreign.call import SEARCHING, Call, of_keywords
from tuner.foreign.folder import write
from tuner.foreign.untuned import learn
from tuner.spec.space import Value


def import_kernel(
    source_of: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL", help="a script that calls tune_kernel, a T1 file (.json), or Optuna's storage"
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]…", help="of the script, after --")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="of the operator: its folder and commands")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="the folder that is to hold it")] = Path(),
    fix: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="a parameter that selects what is computed")
    ] = None,
    kernel: Annotated[str | None, typer.Option(metavar="NAME", help="another kernel than the script tunes")] = None,
    source: Annotated[str | None, typer.Option(metavar="FILE", help="the file of that kernel")] = None,
    positions: Annotated[
        str | None, typer.Option("--arguments", metavar="I,J…", help="which of the script's arguments it takes, from 0")
    ] = None,
    constant: Annotated[
        list[str] | None, typer.Option(metavar="NAME=I", help="a __constant__ symbol that holds argument I")
    ] = None,
    study: Annotated[str | None, typer.Option(metavar="NAME", help="of URL: the study to import")] = None,
    operator: Annotated[
        str | None, typer.Option(metavar="NAME", help=literal("of the study [default: what it says of itself]"))
    ] = None,
    problem: Annotated[str | None, typer.Option(metavar="JSON", help="of the study: the problem's fields")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="GPU", help="of the study: an architecture or a model")] = None,
    implementation: Annotated[
        str | None, typer.Option(metavar="NAME", help="of the study: whose parameters its trials have")
    ] = None,
    evidence: Annotated[
        str | None, typer.Option(metavar="KIND", help="of the study's values: measured (µs) or predicted")
    ] = None,
    db: DbOption = None,
) -> None:
    """Run a script up to its call of tune_kernel, or read a T1 file, and write what is called as an operator's folder;
    or add the trials of an Optuna study to the database, as history that guides later searches.

    The script runs in its own folder, as it is, with stand-ins for Kernel Tuner and, where there is no GPU, for CuPy
    and PyCUDA. The kernel then runs untuned, on a few of its blocks, on the CPU.
    """
    about = {"study": study, "operator": operator, "problem": problem, "gpu": gpu}
    about |= {"implementation": implementation, "evidence": evidence, "db": db}
    if "://" in source_of:
        folders = {"name": name, "fix": fix, "kernel": kernel, "source": source, "constant": constant}
        _refuse(folders | {"arguments": positions}, "for a script or a T1 file, not for a study")
        import_study(source_of, **about)
        return
    _refuse(about, "for an Optuna study: give the URL of its storage, such as sqlite:///study.db")
    path = Path(source_of)
    if not path.is_file():
        raise UsageError(f"no file {path}: give a Python script that calls tune_kernel, or a T1 file")
    chosen = name or _name_of(path)
    check_name(chosen)
    folder = out / chosen
    if folder.exists():
        raise UsageError(f"{folder} is there already, and nothing is overwritten: choose --name NAME, or --out DIR")
    if path.suffix == ".json":
        call = t1.called(path)
    else:
        options = script.called(path, arguments or ())
        keywords = _other_kernel(options, path.parent, kernel, source, positions, constant or ())
        _say_what_stays(keywords)
        call = of_keywords(keywords, path.resolve().parent, path.name)
    fixed = dict(_fixed(call, word) for word in fix or ())
    say(f"running {call.kernel} untuned on the CPU: what does it write, and which parameters change that?")
    learnt = learn(call, fixed)
    write(chosen, folder, call, learnt)
    for parameter, value in learnt.fixed.items():
        if parameter not in fixed:
            say(
                f"{parameter} stays {value!r}, because another value computes something else "
                f"(--fix {parameter}=… sets another)"
            )
    for file in sorted(filter(Path.is_file, folder.rglob("*"))):
        typer.echo(f"wrote {file}")
    typer.echo(next_steps(chosen, out, "on its PTX, on a few of its blocks"))


def _refuse(options: Mapping[str, object], why: str) -> None:
    if given := [f"--{name}" for name, value in options.items() if value]:
        raise UsageError(f"{', '.join(given)}: {why}")


def _name_of(path: Path) -> str:
    return re.sub(r"\W+", "_", path.stem).strip("_").lower()


def _say_what_stays(keywords: Mapping[str, Any]) -> None:
    """Print the options of the call that concern the search and are ignored."""
    if left := [name for name, value in keywords.items() if name in SEARCHING and value]:
        say(f"left to tuner search: {', '.join(left)}")


def _other_kernel(
    keywords: dict[str, Any],
    folder: Path,
    kernel: str | None,
    source: str | None,
    positions: str | None,
    constant: Sequence[str],
) -> dict[str, Any]:
    """Return the call with a kernel of the user's choice, for scripts that tune host code around it."""
    if kernel is None:
        if source or positions or constant:
            raise UsageError("--source, --arguments and --constant say how a kernel is called: give --kernel, too")
        if str(keywords.get("lang")).upper() == "C":
            raise UsageError(_around(keywords, folder))
        return keywords
    values = list(keywords["arguments"])

    def value(position: str) -> Any:
        if not position.isdigit() or int(position) >= len(values):
            raise UsageError(f"argument {position!r}: the script gives {len(values)}, 0 to {len(values) - 1}")
        return values[int(position)]

    taken = [value(position) for position in positions.split(",")] if positions else values
    pairs = (pair.partition("=") for pair in constant)
    symbols = {symbol: value(position) for symbol, _, position in pairs}
    changes = {"kernel_name": kernel, "arguments": taken, "answer": None, "lang": "CUDA"}
    changes |= {"kernel_source": source} if source else {}
    return {**keywords, **changes, "cmem_args": {**(keywords.get("cmem_args") or {}), **symbols}}


def _around(keywords: Mapping[str, Any], folder: Path) -> str:
    """Return the available kernels for a script that tunes host code around a kernel."""
    sources = keywords["kernel_source"]
    files = [str(source_file) for source_file in (sources if isinstance(sources, list | tuple) else [sources])]
    texts = {file: (folder / file).read_text(errors="replace") for file in files if (folder / file).is_file()}
    kernels = [
        f"{name}({' '.join(taken.split())}) in {file}"
        for file, text in texts.items()
        for name, taken in re.findall(r"__global__\s+void\s+(\w+)\s*\(([^)]*)\)", text)
    ]
    symbols = [name for text in texts.values() for name in re.findall(r"__constant__\s+[\w\s]+?(\w+)\s*\[", text)]
    values = [
        f"{i}: {np.asarray(argument).dtype}{list(np.shape(argument))}"
        for i, argument in enumerate(keywords["arguments"])
    ]
    return (
        f"{keywords['kernel_name']} is host code (lang='C'); name a kernel by --kernel, its file by --source, what it "
        f"takes by --arguments, and what its __constant__ symbols hold by --constant. "
        f"Kernels: {'; '.join(kernels) or 'none found'}. Symbols: {', '.join(symbols) or 'none'}. "
        f"Arguments of the call: {', '.join(values)}"
    )


def _fixed(call: Call, word: str) -> tuple[str, Value]:
    name, _, text = word.partition("=")
    for value in call.choices.get(name, ()):
        if str(value) == text:
            return name, value
    choices = ", ".join(f"{parameter}={values[0]}…" for parameter, values in call.choices.items())
    raise UsageError(f"--fix {word}: give a parameter and one of its values ({choices})")
