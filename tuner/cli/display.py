"""The progress of a search on stderr: a live bar on a terminal, a line every few seconds elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tuner.arch import GPU
from tuner.cli.output import say, stderr
from tuner.evaluate.predict.times import predicted_time
from tuner.results.attempt import Attempt, Evidence
from tuner.search.study import Progress as Step
from tuner.search.study import Tried

_ROOM_FOR_BEST, _ROOM_FOR_BAR = 76, 104  # columns of a terminal
_EVERY_S = 5.0  # between lines when stderr is no terminal
_BEFORE = "ranking configs by prediction"  # before the first try
_PHASES = {
    "prove": "judging defaults on this GPU",
    "explore": "searching",
    "sweep": "sweeping around the best",
    "share": "trying others' configs",
    "check": "checking finalists",
}


def live(console: Console) -> Progress:
    """The bars of the phases: how far is always told, the best so far and a bar where the terminal has room."""
    bar = [BarColumn(bar_width=24)] if console.width >= _ROOM_FOR_BAR else []
    more = [TextColumn("{task.fields[best]}"), TimeElapsedColumn()] if console.width >= _ROOM_FOR_BEST else []
    return Progress(TextColumn("{task.description}"), *bar, MofNCompleteColumn(), *more, console=console)


class Display:
    """Shows the steps of one search."""

    def __init__(self, title: str, evidence: Evidence, gpu: GPU, quiet: bool) -> None:
        self._title, self._evidence, self._gpu, self._quiet = title, evidence, gpu, quiet
        self._live = stderr.is_terminal and not quiet
        self._phase, self._last = "", 0.0
        self._task: TaskID | None = None
        self._bar = live(stderr)

    def __enter__(self) -> "Display":
        if not self._quiet:
            say(self._title)
        if self._live:
            self._bar.start()
            self._task = self._bar.add_task(f"  {_BEFORE}", total=None, best="")
        elif not self._quiet:
            say(f"  {_BEFORE} …")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._bar.stop()

    def step(self, step: Step) -> None:
        """Show where the search stands."""
        if self._live:
            self._update(step)
        elif not self._quiet:
            self._line(step)

    def _update(self, step: Step) -> None:
        best = self._best(step.best)
        if step.phase != self._phase:
            if not self._phase and self._task is not None:
                self._bar.remove_task(self._task)
            self._phase = step.phase
            self._task = self._bar.add_task(f"  {_PHASES[step.phase]}", total=step.total, best=best)
        assert self._task is not None
        self._bar.update(self._task, completed=step.done, total=step.total, best=best)

    def _line(self, step: Step) -> None:
        now = time.monotonic()
        if step.phase == self._phase and now - self._last < _EVERY_S and step.done < step.total:
            return
        self._phase, self._last = step.phase, now
        failed = f", {step.failed} failed" if step.failed else ""
        say(f"  {_PHASES[step.phase]}: {step.done}/{step.total}{failed} · {self._best(step.best)}")

    def _best(self, best: Tried | None) -> str:
        if best is None or best.attempt.value is None:
            return "nothing valid yet"
        return f"best {best.instance.implementation.name} {self._value(best.attempt, best.attempt.value)}"

    def _value(self, attempt: Attempt, value: float) -> str:
        """A measured time; a predicted one with its band, where devices have judged such kernels; else a rank."""
        if self._evidence is Evidence.MEASURED:
            return f"{value:.4g} (us)"
        time = predicted_time(attempt.prediction, self._gpu) if attempt.prediction else None
        return f"predicted {time.short}" if time else f"{value:.4g} (predicted)"
