"""The output of `tuner inspect --timeline`: a line of 80 columns per path of a kernel, which shows a warp's states."""

from collections.abc import Sequence
from dataclasses import asdict
from string import ascii_lowercase
from textwrap import fill
from typing import Any

import typer

from tuner.evaluate.predict.timeline import ISSUE, Track

_COLUMNS = 80
_WIDTH = 64  # characters per line, without two of margin and the total
_ISSUED = "█"
_SHOWN = 4  # number of causes shown per path


def print_timeline(title: str, tracks: Sequence[Track]) -> None:
    """Format timelines. `█` is issuing, and letters are waits, as in the legend. Each line is one pass of a path."""
    letters = _letters(tracks)
    typer.echo(f"timeline of {title}: predicted cycles of one warp, alone on its scheduler")
    legend = ", ".join(f"{letter} {state}" for state, letter in letters.items())
    typer.echo(fill(legend, _COLUMNS, initial_indent="  ", subsequent_indent="  "))
    for track in tracks:
        typer.echo(f"  {track.kernel}, {track.role}, {track.place}: {track.cycles:.0f} cycles")
        typer.echo(f"  {''.join(letters[state] for state in track.states(_WIDTH))}")
        shares = [f"{state} {share:.0%}" for state, share in list(track.shares.items())[:_SHOWN]]
        typer.echo(f"    {', '.join(shares)}")


def _letters(tracks: Sequence[Track]) -> dict[str, str]:
    """Return a letter for each state: the first unused letter of its name."""
    letters = {ISSUE: _ISSUED}
    for state in dict.fromkeys(state for track in tracks for state in track.shares):
        free = (letter for letter in state.lower() + ascii_lowercase if letter.isalpha())
        letters.setdefault(state, next(letter for letter in free if letter not in letters.values()))
    return letters


def as_json(tracks: Sequence[Track]) -> list[dict[str, Any]]:
    """Return one JSON value per path, with its states in order."""
    return [asdict(track) | {"cycles": track.cycles} for track in tracks]
