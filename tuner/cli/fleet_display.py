"""The progress of problems that are searched in parallel, on stderr: a live table, or a line when something changes."""

import time
from types import TracebackType

from rich.live import Live
from rich.table import Table

from tuner import operators
from tuner.base.fields import formatted
from tuner.cli.output import say, stderr
from tuner.search.fleet import FleetProgress
from tuner.search.work_unit import Unit
from tuner.spec.command_line import minimal_fields
from tuner.spec.problem import from_fields

_EVERY_S = 5.0  # at least, between two lines if stderr is no terminal
_UNCHANGED_S = 60.0  # between two equal ones
_MOST_ROWS = 16


class FleetDisplay:
    """Shows the progress of a search of many problems; nothing if `quiet`. `worker` is the singular noun for one."""

    def __init__(self, worker: str, quiet: bool) -> None:
        self._worker, self._quiet = worker, quiet
        self._live = Live(console=stderr, refresh_per_second=4) if stderr.is_terminal and not quiet else None
        self._last, self._printed = float("-inf"), (0, 0)  # when a line was printed, and its counts
        self._titles: dict[str, str] = {}

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
        elif not self._quiet and self._due(progress):
            self._last, self._printed = time.monotonic(), (progress.done, progress.configs)
            say(f"  {self._summary(progress)}")

    def _due(self, progress: FleetProgress) -> bool:
        passed, (done, configs) = time.monotonic() - self._last, self._printed
        if progress.done != done or passed >= _UNCHANGED_S:
            return True
        return progress.configs != configs and passed >= _EVERY_S

    def _table(self, progress: FleetProgress) -> Table:
        table = Table(title=self._summary(progress), title_justify="left", box=None, show_header=False, expand=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for unit, seconds in progress.running[:_MOST_ROWS]:
            table.add_row(f"{seconds:.0f} s", self._title(unit))
        if len(progress.running) > _MOST_ROWS:
            table.add_row("", f"and {len(progress.running) - _MOST_ROWS} more")
        return table

    def _title(self, unit: Unit) -> str:
        """The operator, and the fields of the problem that differ from their defaults."""
        if unit.key not in self._titles:
            problem = from_fields(operators.load(unit.operator).problem, unit.problem)
            self._titles[unit.key] = f"{unit.operator} {formatted(minimal_fields(problem))}"
        return self._titles[unit.key]

    def _summary(self, progress: FleetProgress) -> str:
        rate = 60 * progress.configs / max(progress.seconds, 1.0)
        failed = f", {progress.failed} without a record" if progress.failed else ""
        plural = "" if progress.workers == 1 else "s"
        return (
            f"{progress.workers} {self._worker}{plural} · {progress.step}: {progress.done}/{progress.problems} problems"
            f"{failed} · {progress.configs} configs, {rate:.0f} a minute"
        )
