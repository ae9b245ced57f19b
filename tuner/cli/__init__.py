"""The command `tuner`: argv to values and back. What the commands do is in the modules below this one."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tuner import __version__, operators
from tuner.errors import TunerError


def main() -> None:
    """Entry point of the console script."""
    try:
        _add_folders(sys.argv[1:])
    except TunerError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    build()()


def build() -> typer.Typer:
    """The whole command line."""
    from tuner.cli import bench, doctor, export, inspect, replay, search, show
    from tuner.cli.options import Root, per_operator
    from tuner.cli.output import guarded

    app = typer.Typer(
        name="tuner",
        cls=Root,
        help="Search, check, store, report and serve CUDA kernels; on a machine with no GPU, too.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_globals)
    per_operator(app, "search", search.search, help="Find the best config of a problem. Resumes by default.")
    per_operator(app, "explain", show.explain, help="Say which record serves a problem, or what refuses a config.")
    per_operator(app, "render", inspect.render_command, help="Print the CUDA source of a config.")
    per_operator(app, "inspect", inspect.inspect_command, help="Compile a config and print what it uses.")
    per_operator(app, "verify", inspect.verify_command, help="Check a config on the CPU emulator.")
    per_operator(app, "bench", bench.bench_command, help="Race our best against peers, or predict for a GPU.")
    per_operator(app, "report", show.report, help="Write the report of what is stored.")
    per_operator(app, "export", export.export_command, help="Write the attempts at a problem as T4.")
    app.command("show")(guarded(show.show))
    app.command("operators")(guarded(show.list_operators))
    app.command("replay")(guarded(replay.replay_command))
    app.command("doctor")(guarded(doctor.doctor))
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tuner {__version__}")
        raise typer.Exit


def _globals(
    _version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_print_version)
    ] = False,
    _folder: Annotated[
        list[Path] | None, typer.Option("--operators", help="a folder of your own operators (also TUNER_OPERATORS)")
    ] = None,
) -> None:
    """What stands before a command. The folders are read in `main`, before there are commands."""


def _add_folders(arguments: list[str]) -> None:
    """Commands are made from what operators there are, so their folders must be known before options are parsed."""
    for i, word in enumerate(arguments):
        if word == "--operators" and i + 1 < len(arguments):
            operators.add_folder(Path(arguments[i + 1]))
        elif word.startswith("--operators="):
            operators.add_folder(Path(word.partition("=")[2]))
    for name in os.environ.get("TUNER_OPERATORS", "").split(os.pathsep):
        if name:
            operators.add_folder(Path(name))
