"""The progress of a search on stderr: a live bar on a terminal, a line every few seconds elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from tuner.arch import GPU
from tuner.cli.output import say, stderr
from tuner.evaluate.predict.predicted_time import predicted_time
from tuner.results.attempt import Attempt, Evidence
from tuner.search.study import Progress as Step
from tuner.search.study import Tried

_ROOM_FOR_STANDING, _ROOM_FOR_BAR, _ROOM_FOR_ALL = 44, 76, 104  # columns of a terminal
_EVERY_S = 5.0  # between lines if stderr is not a terminal
_FEW = 3  # tries after which the rate is shown
_BEFORE = "ranking configs by prediction"  # before the first try
_INTERRUPT = "Ctrl-C checks what has been found so far and ends; a second Ctrl-C ends at once."
_TRYING = ("explore", "sweep", "share")  # phases that try configs
_PHASES = {
    "explore": "searching",
    "sweep": "sweeping",
    "share": "sharing",
    "check": "checking",
    "prove": "judging defaults on this GPU",
}


def live(console: Console) -> Progress:
    """Return the bars of the phases. A narrow terminal shows the progress of the phase, a wider one also the gain and a
    bar.
    """
    bar = [BarColumn(bar_width=8 if console.width < _ROOM_FOR_ALL else 24)] if console.width >= _ROOM_FOR_BAR else []
    standing = [TextColumn("{task.fields[standing]}")] if console.width >= _ROOM_FOR_STANDING else []
    return Progress(TextColumn("{task.description}"), *bar, MofNCompleteColumn(), *standing, console=console)


class Standing:
    """The state of a search: the gain so far, the tries since the last gain, and the time left at the current rate.

    `untuned` is the key of the config that a call runs without a record. The gain is relative to its value, once known.
    """

    def __init__(self, evidence: Evidence, untuned: object | None) -> None:
        self._kind = "measured" if evidence is Evidence.MEASURED else "predicted"
        self._untuned_key, self._untuned = untuned, 0.0
        self._best, self._without = float("inf"), 0
        self._phase, self._first, self._began = "", 0, time.monotonic()

    def after(self, step: Step, now: float) -> str:
        """Return the state after a step, such as `predicted gain 54 % · none for 3 tries · 0:40 left`."""
        if step.phase != self._phase:
            self._phase, self._first, self._began = step.phase, step.done, now
        if step.phase in _TRYING:
            self._take(step)
        return " · ".join(filter(None, (self._gain(step.best), self._dry(), self._left(step, now))))

    def _take(self, step: Step) -> None:
        latest = step.latest
        if latest is not None and latest.instance.key == self._untuned_key and latest.attempt.value:
            self._untuned = latest.attempt.value
        value = step.best.attempt.value if step.best else None
        self._without = 0 if value is not None and value != self._best else self._without + 1
        self._best = self._best if value is None else value

    def _gain(self, best: Tried | None) -> str:
        if best is None or best.attempt.value is None:
            return "nothing valid yet"
        if not self._untuned:
            return f"best so far: {best.instance.implementation.name}"
        return f"{self._kind} gain {self._untuned / best.attempt.value - 1:.0%}".replace("%", " %")

    def _dry(self) -> str:
        tries = "1 try" if self._without == 1 else f"{self._without} tries"
        return f"none for {tries}" if self._without and self._phase in _TRYING else ""

    def _left(self, step: Step, now: float) -> str:
        done = step.done - self._first
        if done < _FEW or step.done >= step.total:
            return ""
        seconds = round((now - self._began) / done * (step.total - step.done))
        return f"{seconds // 60}:{seconds % 60:02} left"


class Display:
    """Displays the progress of one search."""

    def __init__(self, title: str, evidence: Evidence, gpu: GPU, quiet: bool, untuned: object | None = None) -> None:
        self._title, self._evidence, self._gpu, self._quiet = title, evidence, gpu, quiet
        self._standing = Standing(evidence, untuned)
        self._live = stderr.is_terminal and not quiet
        self._phase, self._last = "", 0.0
        self._task: TaskID | None = None
        self._bar = live(stderr)

    def __enter__(self) -> "Display":
        if not self._quiet:
            say(self._title)
            say(f"  {_INTERRUPT}")
        if self._live:
            self._bar.start()
            self._task = self._bar.add_task(f"  {_BEFORE}", total=None, standing="")
        elif not self._quiet:
            say(f"  {_BEFORE} …")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._bar.stop()

    def step(self, step: Step) -> None:
        """Show the current progress."""
        standing = self._standing.after(step, time.monotonic())
        if (not self._live or stderr.width >= _ROOM_FOR_ALL) and (value := self._value(step.best)):
            standing += f" · {value}"
        if self._live:
            self._update(step, standing)
        elif not self._quiet:
            self._line(step, standing)

    def _value(self, best: Tried | None) -> str:
        """Return the best measured time, or the predicted time with its band if devices have judged such kernels."""
        attempt: Attempt | None = best.attempt if best else None
        if attempt is None or attempt.value is None:
            return ""
        if self._evidence is Evidence.MEASURED:
            return f"{attempt.value:.4g} us"
        time = predicted_time(attempt.prediction, self._gpu) if attempt.prediction else None
        return f"predicted {time.short}" if time else ""

    def _update(self, step: Step, standing: str) -> None:
        if step.phase != self._phase:
            if not self._phase and self._task is not None:
                self._bar.remove_task(self._task)
            self._phase = step.phase
            self._task = self._bar.add_task(f"  {_PHASES[step.phase]}", total=step.total, standing=standing)
        assert self._task is not None
        self._bar.update(self._task, completed=step.done, total=step.total, standing=standing)

    def _line(self, step: Step, standing: str) -> None:
        now = time.monotonic()
        if step.phase == self._phase and now - self._last < _EVERY_S and step.done < step.total:
            return
        self._phase, self._last = step.phase, now
        failed = f" ({step.failed} failed)" if step.failed else ""
        say(f"  {_PHASES[step.phase]} {step.done}/{step.total}{failed} · {standing}")
