"""The part of `tuner inspect` for undeclared work: loops and accesses of a block, and the confidence in the counts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer

from tuner.backends.ptx.counting import Access, Counts
from tuner.cli.output import table
from tuner.evaluate.predict.compiled import UndeclaredLaunch

_SHOWN = 12  # accesses per kernel, those with the most wavefronts first


def print_counted(kernels: Sequence[UndeclaredLaunch]) -> None:
    """Print the loops and accesses of each launch, and the basis of the counts."""
    for kernel in kernels:
        if kernel.counted is None:
            typer.echo(f"work of {kernel.launch.entry}: counted from machine code alone, since {kernel.reason}")
            continue
        counts = kernel.counted.counts
        _print_loops(kernel.launch.entry, counts)
        _print_accesses(kernel.launch.entry, counts)
        typer.echo(f"how sure: {how_sure(counts)}")


def how_sure(counts: Counts) -> str:
    """Return a sentence about the basis of the counts."""
    cut = sum(loop.extrapolated for loop in counts.loops)
    sentence = "blocks of the grid were executed as far as that decides where lanes go and what they address"
    passes = f"; most passes of {cut} of {len(counts.loops)} loops follow from their counters" if cut else ""
    doubt = f". But {counts.unsure}" if counts.unsure else ""
    trust = "No measurement has confirmed the cost; a search checks it on random attempts before it relies on it"
    return f"{sentence}{passes}{doubt}. {trust}"


def _print_loops(entry: str, counts: Counts) -> None:
    table(
        f"loops of {entry}, as a warp passes them; {counts.active:.0%} of its lanes are active on average",
        ("from line of the PTX", "passes", "each time", "comes there", "told by"),
        [
            (
                str(counts.entry.code[loop.start].line),
                f"{loop.trips * loop.entries:.6g}",
                f"{loop.trips:.6g}",
                f"{loop.entries:.6g}",
                "its counters" if loop.extrapolated else "execution",
            )
            for loop in counts.loops
        ],
        right=("passes", "each time", "comes there"),
    )


def _print_accesses(entry: str, counts: Counts) -> None:
    accesses = sorted(counts.accesses, key=lambda access: -access.wavefronts)
    names = ("line", "memory", "what", "bytes per lane", "a warp", "addresses", "sectors", "L1 hits", "turns")
    table(
        f"accesses of {entry}, a request: different addresses, sectors of 32 bytes, and turns of L1's lines or of banks"
        + (f"; those with the most turns of {len(accesses)}" if len(accesses) > _SHOWN else ""),
        names,
        [_row(access, counts) for access in accesses[:_SHOWN]],
        right=(names[0], *names[3:]),
    )


def _row(access: Access, counts: Counts) -> tuple[str, ...]:
    cached = access.space == "global" and access.kind == "load" and access.sectors
    return (
        str(access.line),
        access.space,
        access.kind,
        str(access.nbytes),
        f"{access.requests / counts.warps:.6g}",
        f"{access.distinct / access.requests:.3g}",
        f"{access.sectors / access.requests:.3g}" if access.space != "shared" else "",
        f"{1 - access.misses / access.sectors:.0%}" if cached else "",
        f"{access.wavefronts / access.requests:.3g}",
    )


def as_json(kernels: Sequence[UndeclaredLaunch]) -> list[dict[str, Any]]:
    """Return one value per launch: its loops and accesses, with the counts of a block."""
    return [
        {"kernel": kernel.launch.entry, "counted": False, "why": kernel.reason}
        if kernel.counted is None
        else {
            "kernel": kernel.launch.entry,
            "counted": True,
            "loops": [asdict(loop) for loop in kernel.counted.counts.loops],
            "accesses": [asdict(access) for access in kernel.counted.counts.accesses],
            "active_lanes": kernel.counted.counts.active,
            "how_sure": how_sure(kernel.counted.counts),
        }
        for kernel in kernels
    ]
