"""Calls without a record: counted by problem, and reported by one warning per kernel and GPU, a log or an error."""

import atexit
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack

from tuner.base.fields import Fields
from tuner.base.fork import renew_in_child
from tuner.dispatcher.config_choice import Choice
from tuner.dispatcher.miss_log import MissLog
from tuner.errors import UsageError
from tuner.spec.problem import canonical, extents, statics, to_fields
from tuner.store.misses import Missed

_REMEMBERED = 16384  # maximum number of problems; the oldest is evicted first


class UntunedWarning(UserWarning):
    """A kernel runs with its default config, because no record serves the problem."""


@dataclass(frozen=True)
class Miss:
    """A problem that ran with a default config, and its number of calls."""

    operator: str
    problem: Fields
    gpu: str
    calls: int
    command: str  # tunes it


_counting = threading.Lock()  # held for a single addition; shared by the calls of all operators


def _renew() -> None:
    global _counting
    _counting = threading.Lock()


renew_in_child(_renew)


class Tally:
    """Counts the calls of one problem, from any thread."""

    def __init__(self, choice: Callable[[], Choice]) -> None:
        self._choice = choice
        self._calls = 0

    def add(self) -> None:
        with _counting:
            self._calls += 1

    def flush(self) -> None:
        """Log the calls that are not logged yet."""

    def miss(self) -> Miss:
        choice = self._choice()
        instance, gpu = choice.instance, choice.gpu
        return Miss(instance.operator.name, to_fields(instance.problem), gpu.name, self._calls, choice.command)


class _LoggedTally(Tally):
    """A tally that is logged at the first call, and whenever the number of calls has doubled."""

    def __init__(self, choice: Callable[[], Choice], log: MissLog) -> None:
        super().__init__(choice)
        self.log, self._logged, self._next = log, 0, 1
        _logged.add(self)

    def add(self) -> None:
        with _counting:
            self._calls += 1
            new = self._due() if self._calls >= self._next else 0
        if new:
            self._write(new)

    def flush(self) -> None:
        with _counting:
            new = self._due()
        if new:
            self._write(new)

    def _due(self) -> int:
        """Return the calls since the last line, if a new line is due. Requires `_counting`."""
        new, self._logged, self._next = self._calls - self._logged, self._calls, 2 * self._calls
        return new

    def _write(self, calls: int) -> None:
        choice = self._choice()
        instance = choice.instance
        ran = "default" if choice.record is None else "nearest"
        self.log.add(Missed(instance.operator.name, canonical(instance.problem), choice.gpu.name, ran, calls))


_logged: "weakref.WeakSet[_LoggedTally]" = weakref.WeakSet()


def _flush() -> None:
    tallies = list(_logged)
    for tally in tallies:
        tally.flush()
    for log in {tally.log for tally in tallies}:
        log.close()


def _leave_to_parent() -> None:
    """In a forked child, discard the parent's counts, which the parent logs."""
    for tally in list(_logged):
        tally._logged = tally._calls


renew_in_child(_leave_to_parent)
atexit.register(_flush)


class Untuned:
    """The tallies of one dispatcher.

    `strict` makes a miss a UsageError. `log` records misses, and calls served by the record of another problem or arch.
    """

    def __init__(self, *, strict: bool, log: MissLog | None = None) -> None:
        self._strict, self._log = strict, log
        self._tallies: dict[object, Tally] = {}
        self._nearest: dict[object, Tally] = {}
        self._warned: set[object] = set()

    def counted(self, choice: Choice) -> bool:
        """Return whether calls that run a choice are counted."""
        return choice.record is None or (self._log is not None and choice.foreign)

    def tally(self, choice: Choice) -> Tally:
        """Return the tally of a problem; warn of the first problem with its static fields on a GPU, unless a record
        serves it.
        """
        if choice.record is None:
            self._warn(choice)
        problem = choice.instance.problem
        fields = (tuple(getattr(problem, name) for name in names(problem)) for names in (statics, extents))
        return self.warned(choice, tuple(fields), lambda: choice)

    def warned(self, kernel: Choice, problem: object, choice: Callable[[], Choice]) -> Tally:
        """Return the tally of a problem whose kernel was warned of before, by the values of its static fields and
        extents.

        `choice` is called when misses are listed.
        """
        key = kernel.instance.operator.name, kernel.gpu.name, problem
        tallies = self._tallies if kernel.record is None else self._nearest
        tally = tallies.get(key)
        if tally is None:
            if len(tallies) >= _REMEMBERED and (oldest := tallies.pop(next(iter(tallies)), None)):
                oldest.flush()
            new = Tally(choice) if self._log is None else _LoggedTally(choice, self._log)
            tally = tallies.setdefault(key, new)
        return tally

    def flush(self) -> None:
        """Log the calls that are not logged yet."""
        for tally in [*self._tallies.values(), *self._nearest.values()]:
            tally.flush()

    def misses(self) -> tuple[Miss, ...]:
        """Return the misses, the most frequent first."""
        return tuple(sorted((tally.miss() for tally in list(self._tallies.values())), key=lambda miss: -miss.calls))

    def _warn(self, choice: Choice) -> None:
        operator, problem = choice.instance.operator.name, choice.instance.problem
        kernel = operator, choice.gpu.name, tuple(getattr(problem, name) for name in statics(problem))
        if self._strict:
            raise UsageError(f"{operator}: no record serves this problem, and TUNER_STRICT is set: `{choice.command}`")
        if kernel not in self._warned:
            self._warned.add(kernel)
            runs = f"{operator} runs {choice.instance.implementation.name} with its default config"
            text = f"{runs}; tune it: `{choice.command}`{_stand_in(choice)}"
            warnings.warn(text, UntunedWarning, stacklevel=_callers())


def _stand_in(choice: Choice) -> str:
    """Return what to replace in the command of a call on the CPU, for which an arch stands in for the GPU to come."""
    name = choice.gpu.name
    if name != choice.gpu.arch.name:
        return ""
    return f" with the GPU that you will use in place of {name} (TUNER_GPU=… names it here)"


def _callers() -> int:
    """Return the number of stack frames up to the application: the first frame outside this program and torch."""
    skipped = [Path(module.__file__ or "").parent for name in ("tuner", "torch") if (module := sys.modules.get(name))]
    files = [Path(frame.f_code.co_filename) for frame, _ in walk_stack(sys._getframe(1))]
    ours = [any(file.is_relative_to(folder) for folder in skipped) for file in files]
    return ours.index(False) + 1 if False in ours else len(files)
