"""Shared output of all commands: tables on stdout, messages on stderr, JSON on request, exit codes."""

import errno
import functools
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tuner.errors import MachineError, TunerError, UsageError


def literal(text: str) -> str:
    """Escape a help text, since rich interprets `[words]` as markup and prints nothing."""
    return escape(text)


JsonOption = Annotated[bool, typer.Option("--json", help="print JSON to stdout instead of tables")]
GpuOption = Annotated[str, typer.Option("--gpu", help="architecture or model: sm_90a, H200, 'RTX 5090' …; here")]
CheckSecondsOption = Annotated[
    float, typer.Option("--check-seconds", metavar="N", min=1, help="the longest that checking a config may take")
]
DbOption = Annotated[
    str | None, typer.Option("--db", help=literal("database file or URL [default: $TUNER_DB, or the user's]"))
]
ImplementationOption = Annotated[str | None, typer.Option("--implementation", help="only this implementation")]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE…", help="set config fields by hand, several with commas"),
]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORD = 26  # column width up to which words are never folded

stdout = Console(highlight=False, soft_wrap=False, markup=False)
stderr = Console(stderr=True, highlight=False)


def examples(lines: Sequence[str], operator: str = "OPERATOR") -> str:
    """Return the end of a help text: example commands."""
    return "\n\n".join(("Examples:", *(literal(line.format(operator=operator)) for line in lines)))


def finished(command: Any) -> None:
    """Make a command and its subcommands show `--flag` for a boolean instead of `--flag <bool>` in their help, and
    refuse an option that is given twice, of which the last value would win silently.
    """
    if not getattr(command, "commands", {}):
        parse = command.parse_args
        command.parse_args = lambda context, words: parse(context, _once(command, words))
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    help_option = command.get_help_option
    command.get_help_option = lambda context: _without_type(help_option(context))
    for sub in getattr(command, "commands", {}).values():
        finished(sub)


def _once(command: Any, words: list[str]) -> list[str]:
    """Return `words`; raise UsageError if an option with one value is among them twice."""
    single = {
        name: parameter.opts[0]
        for parameter in command.params
        if getattr(parameter, "multiple", True) is False and not getattr(parameter, "is_flag", False)
        for name in parameter.opts
    }
    options = words[: words.index("--")] if "--" in words else words
    used: set[str] = set()
    for word in options:
        option = single.get(word.partition("=")[0])
        if option is not None and option in used:
            raise UsageError(f"{option} is given twice: give it once")
        used |= {option} if option else set()
    return words


def _without_type(option: Any) -> Any:
    option.metavar = ""
    return option


def guarded(body: Callable[..., None]) -> Callable[..., None]:
    """Return a command that ends as documented in `ending`."""

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> None:
        with ending():
            body(*args, **kwargs)

    return run


@contextmanager
def ending() -> Iterator[None]:
    """Exit with one message and the exit code of a TunerError, with 130 after Ctrl-C, silently if the reader is
    gone.
    """
    try:
        with _written():
            yield
    except TunerError as error:
        fail(error)
    except KeyboardInterrupt:
        _forget_what_is_refused()
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except (BrokenPipeError, SystemExit) as error:  # as in `tuner show | head`
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise  # otherwise rich exits with 1
        _forget_what_is_refused()
        raise typer.Exit(0) from None
    except OSError as error:
        fail(MachineError(_refused(error)))


@contextmanager
def _written() -> Iterator[None]:
    """Flush stdout, so that errors are reported before a command ends."""
    try:
        yield
    except (typer.Exit, SystemExit):
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _forget_what_is_refused() -> None:
    """Discard unwritten output; otherwise Python would retry at exit, with its own message and exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(error: OSError) -> str:
    """Return the failed operation, and a remedy."""
    what = f"{error.strerror or error}{f' for {error.filename}' if error.filename else ''}"
    if error.errno in _FULL:
        return f"{what}: make room where the database, the cache (TUNER_CACHE_DIR) and temporary files (TMPDIR) are"
    return f"{what}: name another place (TUNER_DEBUG=1 shows where it was needed)"


def fail(error: TunerError) -> None:
    """Print the message and exit. With TUNER_DEBUG=1 the error propagates, for its traceback."""
    if os.environ.get("TUNER_DEBUG") == "1":
        raise error
    _forget_what_is_refused()
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(error.exit_code) from None


def other_database(db: str | None) -> str:
    """Return the database of a command if it is not the user's own; otherwise an empty text."""
    from tuner.store import locations

    path, own = db or locations.database(), locations.user_database()
    path = path if "://" in path else str(Path(path).expanduser().resolve())
    return "" if own is not None and path == str(own.resolve()) else path


def emit_json(data: Any) -> None:
    """Print one JSON document on stdout; null represents the error of a non-finite output."""
    typer.echo(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False, default=str))


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {name: _finite(value) for name, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print a table on stdout; columns in `right` are right-aligned. Lines are not wrapped if stdout is not a terminal.

    If a terminal is too narrow for the words, each row becomes a list of labels and values.
    """
    widths = _widths(columns, rows, stdout.width) if stdout.is_terminal else [None] * len(columns)
    if not widths:
        _lists(title, columns, rows)
        return
    shown = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        shown.add_column(column, justify="right" if column in right else "left", overflow="fold", width=width)
    for row in rows:
        shown.add_row(*("" if cell is None else str(cell) for cell in row))
    if stdout.is_terminal:
        stdout.print(shown)
        return
    wide = Console(width=_width(columns, rows), highlight=False, markup=False, color_system=None)
    shown.title = None  # it would be wrapped at the table's width
    with wide.capture() as captured:
        wide.print(shown)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    typer.echo("\n".join([title, *lines] if title else lines))


def listing(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print labels and values on stdout, one per line."""
    typer.echo(title)
    width = max((len(label) for label, _ in rows), default=0)
    for label, value in rows:
        typer.echo(f"  {label:<{width}}  {value}")


def wrapped(line: str) -> str:
    """Wrap a line with indentation at the terminal width; do not wrap it if stdout is not a terminal."""
    indent = len(line) - len(line.lstrip())
    return textwrap.fill(line, stdout.width, subsequent_indent=" " * (indent + 4)) if stdout.is_terminal else line


def _lists(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    typer.echo(title)
    for row in rows:
        typer.echo("")
        listing(str(row[0]), [(name, str(cell)) for name, cell in zip(columns[1:], row[1:], strict=True) if cell])


def _widths(columns: Sequence[str], rows: Sequence[Sequence[object]], room: int) -> list[int]:
    """Return the width of each column: enough for every word, plus a share of the remaining `room`.

    Empty if words do not fit; rich alone would break words to keep cells whole.
    """
    cells = [["" if cell is None else str(cell) for cell in column] for column in zip(columns, *rows, strict=True)]
    least = [min(max((len(word) for cell in column for word in cell.split()), default=0), _WORD) for column in cells]
    widest = [max(map(len, column)) for column in cells]
    left = room - sum(least) - 2 * (len(cells) - 1)
    if left < 0:
        return []
    missing = sum(widest) - sum(least)
    share = min(1.0, left / missing) if missing else 0.0
    return [width + int(share * (widest_cell - width)) for width, widest_cell in zip(least, widest, strict=True)]


def _width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    widths = [max(len(str(cell)) for cell in column) for column in zip(columns, *rows, strict=True)]
    return max(80, sum(widths) + 3 * len(columns))


def say(text: str) -> None:
    """Print a line on stderr: progress and remarks, never results."""
    stderr.print(text, markup=False, soft_wrap=True)
