"""The progress of a parallel search over several problems on stderr: a live table, or a line every few seconds."""

import time
from types import TracebackType

from rich.live import Live
from rich.table import Table

from tuner.base.fields import formatted
from tuner.cli.output import say, stderr
from tuner.search.fleet import FleetProgress

_EVERY_S = 5.0  # between lines if stderr is not a terminal
_MOST_ROWS = 16


class FleetDisplay:
    """Shows the progress of a search over many problems; nothing if `quiet`."""

    def __init__(self, workers: str, quiet: bool) -> None:
        self._workers, self._quiet = workers, quiet  # kind of workers: GPUs, or workers of a farm
        self._live = Live(console=stderr, refresh_per_second=4) if stderr.is_terminal and not quiet else None
        self._last, self._done = 0.0, -1

    def __enter__(self) -> "FleetDisplay":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: FleetProgress) -> None:
        if self._live:
            self._live.update(self._table(progress))
            return
        now = time.monotonic()
        if not self._quiet and (now - self._last >= _EVERY_S or progress.done != self._done):
            self._last, self._done = now, progress.done
            say(f"  {self._summary(progress)}")

    def _table(self, progress: FleetProgress) -> Table:
        table = Table(title=self._summary(progress), title_justify="left", box=None, show_header=False)
        for unit in progress.running[:_MOST_ROWS]:
            table.add_row("  searching", f"{unit.operator} {formatted(unit.problem)}")
        if len(progress.running) > _MOST_ROWS:
            table.add_row("", f"and {len(progress.running) - _MOST_ROWS} more")
        return table

    def _summary(self, progress: FleetProgress) -> str:
        rate = 60 * progress.configs / max(progress.seconds, 1.0)
        failed = f", {progress.failed} without a record" if progress.failed else ""
        return (
            f"{progress.workers} {self._workers} · {progress.done}/{progress.problems} problems{failed} · "
            f"{progress.configs} configs, {rate:.0f} a minute"
        )
