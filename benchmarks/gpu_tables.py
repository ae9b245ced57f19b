"""The times of a run of `gpu.py` as plain text: every implementation on every timed problem."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_run import Run

_HEAD = ("problem", "implementation", "us", "TFLOP/s", "GB/s", "of")


def write(run: Run) -> None:
    (run.out / "times.txt").write_text(text(run) + "\n")


def text(run: Run) -> str:
    """Format the table. A problem is shown by its non-default fields; rates are for the minimum work and traffic."""
    rows = [_HEAD, *(row for name, step in run.rows.steps.items() for row in _rows(name, step))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _rows(name: str, step: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    kind, problem = name.partition(" ")[0], step.get("about", "")
    for implementation, time_us in step.get("times_us", {}).items():
        rates = (f"{step[least] / time_us / unit:.1f}" for least, unit in (("flops", 1e6), ("bytes", 1e3)))
        yield problem, implementation, f"{time_us:.1f}", *rates, kind
    for implementation, why in step.get("without", {}).items():
        yield problem, implementation, "-", "-", "-", f"{kind}: {why}"
