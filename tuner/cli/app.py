"""The command line: its global options, and the commands by name."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from tuner import __version__
from tuner.cli import registry
from tuner.errors import TunerError


def run() -> None:
    """Run the command in argv, and exit."""
    warnings.formatwarning = _plain_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # terminals without UTF-8 show question marks
    try:
        _add_folders(sys.argv[1:])
    except TunerError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    build()()


def build() -> typer.Typer:
    """Build the command line."""
    app = typer.Typer(
        name="tuner",
        cls=registry.Root,
        help="Search, check, store, report and serve CUDA kernels; on a machine with no GPU, too.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_globals)
    registry.add_all(app)
    return app


def _plain_warning(message: Warning | str, *_: object, **__: object) -> str:
    return f"warning: {message}\n"


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tuner {__version__}")
        raise typer.Exit


def _globals(
    _version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_print_version)
    ] = False,
    _folder: Annotated[
        list[Path] | None,
        typer.Option("--operators", metavar="DIR", help="a folder of your own operators (also TUNER_OPERATORS)"),
    ] = None,
) -> None:
    """Accept the options before a command. Folders are added in `main`, before commands exist."""


def _add_folders(arguments: Sequence[str]) -> None:
    """Add operator folders before parsing options, because commands are built from the available operators."""
    for folder in _folders(arguments):
        from tuner import operators  # imported here because it needs NumPy, which help does not

        operators.add_folder(folder)


def _folders(arguments: Sequence[str]) -> Iterator[Path]:
    for i, word in enumerate(arguments):
        if word == "--operators" and i + 1 < len(arguments):
            yield Path(arguments[i + 1])
        elif word.startswith("--operators="):
            yield Path(word.partition("=")[2])
    yield from map(Path, filter(None, os.environ.get("TUNER_OPERATORS", "").split(os.pathsep)))
