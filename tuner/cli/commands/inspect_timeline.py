"""What `tuner inspect --timeline` says: a line of 80 columns for each path of a kernel, with what a warp does when."""

from collections.abc import Sequence
from dataclasses import asdict
from string import ascii_lowercase
from textwrap import fill
from typing import Any

import typer

from tuner.evaluate.predict.timeline import ISSUE, Track

_COLUMNS = 80
_WIDTH = 64  # characters of a line, beside two of margin and the total
_ISSUED = "█"
_SHOWN = 4  # causes of a track


def print_timeline(title: str, tracks: Sequence[Track]) -> None:
    """`█` is issuing; a letter is a wait, by the legend. Each line is one pass of a path."""
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
    """A letter for each state: the first of its name that is free."""
    letters = {ISSUE: _ISSUED}
    for state in dict.fromkeys(state for track in tracks for state in track.shares):
        free = (letter for letter in state.lower() + ascii_lowercase if letter.isalpha())
        letters.setdefault(state, next(letter for letter in free if letter not in letters.values()))
    return letters


def as_json(tracks: Sequence[Track]) -> list[dict[str, Any]]:
    """A value a path, with its runs in order."""
    return [asdict(track) | {"cycles": track.cycles} for track in tracks]
