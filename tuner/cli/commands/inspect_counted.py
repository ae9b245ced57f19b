"""What `tuner inspect` says of work that nobody declared: loops and accesses of a block, and how sure it is."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer

from tuner.backends.ptx.counting import Access, Counts
from tuner.cli.output import table
from tuner.evaluate.predict.compiled import UndeclaredLaunch

_SHOWN = 12  # accesses of a kernel, those with the most turns first


def print_counted(found: Sequence[UndeclaredLaunch]) -> None:
    """The loops and the accesses of each launch, and what the numbers stand on."""
    for each in found:
        if each.counted is None:
            typer.echo(f"work of {each.launch.entry}: told by machine code alone, since {each.reason}")
            continue
        counts = each.counted.counts
        _print_loops(each.launch.entry, counts)
        _print_accesses(each.launch.entry, counts)
        typer.echo(f"how sure: {how_sure(counts)}")


def how_sure(counts: Counts) -> str:
    """What the counts stand on, in a sentence."""
    cut = sum(each.extrapolated for each in counts.loops)
    told = "blocks of the grid were executed as far as that decides where lanes go and what they address"
    passes = f"; most passes of {cut} of {len(counts.loops)} loops follow from their counters" if cut else ""
    doubt = f". But {counts.unsure}" if counts.unsure else ""
    return (
        f"{told}{passes}{doubt}. No time has confirmed the cost: a search does, on random tries, before it relies on it"
    )


def _print_loops(entry: str, counts: Counts) -> None:
    table(
        f"loops of {entry}, as a warp passes them; {counts.active:.0%} of its lanes are active on average",
        ("from line of the PTX", "passes", "each time", "comes there", "told by"),
        [
            (
                str(counts.entry.code[each.start].line),
                f"{each.trips * each.entries:.6g}",
                f"{each.trips:.6g}",
                f"{each.entries:.6g}",
                "its counters" if each.extrapolated else "execution",
            )
            for each in counts.loops
        ],
        right=("passes", "each time", "comes there"),
    )


def _print_accesses(entry: str, counts: Counts) -> None:
    made = sorted(counts.accesses, key=lambda each: -each.wavefronts)
    names = ("line", "memory", "what", "bytes a lane", "a warp", "addresses", "sectors", "L1 hits", "turns")
    table(
        f"accesses of {entry}, a request: different addresses, sectors of 32 bytes, and turns of L1's lines or of banks"
        + (f"; those with the most turns of {len(made)}" if len(made) > _SHOWN else ""),
        names,
        [_row(each, counts) for each in made[:_SHOWN]],
        right=(names[0], *names[3:]),
    )


def _row(each: Access, counts: Counts) -> tuple[str, ...]:
    cached = each.space == "global" and each.kind == "load" and each.sectors
    return (
        str(each.line),
        each.space,
        each.kind,
        str(each.nbytes),
        f"{each.requests / counts.warps:.6g}",
        f"{each.distinct / each.requests:.3g}",
        f"{each.sectors / each.requests:.3g}" if each.space != "shared" else "",
        f"{1 - each.misses / each.sectors:.0%}" if cached else "",
        f"{each.wavefronts / each.requests:.3g}",
    )


def as_json(found: Sequence[UndeclaredLaunch]) -> list[dict[str, Any]]:
    """A value a launch: its loops and accesses, counts of a block."""
    return [
        {"kernel": each.launch.entry, "counted": False, "why": each.reason}
        if each.counted is None
        else {
            "kernel": each.launch.entry,
            "counted": True,
            "loops": [asdict(loop) for loop in each.counted.counts.loops],
            "accesses": [asdict(access) for access in each.counted.counts.accesses],
            "active_lanes": each.counted.counts.active,
            "how_sure": how_sure(each.counted.counts),
        }
        for each in found
    ]
