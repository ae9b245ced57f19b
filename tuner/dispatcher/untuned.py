"""Calls that no record serves: counted by problem, warned of once a kernel and GPU, or refused."""

import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack

from tuner.base.fields import Fields
from tuner.base.fork import renew_in_child
from tuner.dispatcher.choice import Choice
from tuner.errors import UsageError
from tuner.spec.problem import extents, statics, to_fields

_REMEMBERED = 16384  # problems; the oldest is forgotten first


class UntunedWarning(UserWarning):
    """A kernel runs with its default config, because no record serves the problem."""


@dataclass(frozen=True)
class Miss:
    """A problem that ran with a default config, and how often."""

    operator: str
    problem: Fields
    gpu: str
    calls: int
    command: str  # tunes it


_counting = threading.Lock()  # for one addition; a call of every operator takes it


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

    def miss(self) -> Miss:
        choice = self._choice()
        instance, gpu = choice.instance, choice.gpu
        return Miss(instance.operator.name, to_fields(instance.problem), gpu.name, self._calls, choice.command)


class Untuned:
    """The tallies of one dispatcher. `strict` makes a miss a UsageError."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._tallies: dict[object, Tally] = {}
        self._warned: set[object] = set()

    def tally(self, choice: Choice) -> Tally:
        """The tally of a problem; warns the application of the first problem with its static fields on a GPU."""
        self._warn(choice)
        problem = choice.instance.problem
        fields = (tuple(getattr(problem, name) for name in names(problem)) for names in (statics, extents))
        return self.warned(choice, tuple(fields), lambda: choice)

    def warned(self, kernel: Choice, problem: object, choice: Callable[[], Choice]) -> Tally:
        """The tally of a problem of whose kernel the application was warned, by the values of its static fields and of
        its extents; `choice` is called when misses are listed."""
        key = kernel.instance.operator.name, kernel.gpu.name, problem
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= _REMEMBERED:
                self._tallies.pop(next(iter(self._tallies)), None)
            tally = self._tallies.setdefault(key, Tally(choice))
        return tally

    def misses(self) -> tuple[Miss, ...]:
        """The most frequent first."""
        return tuple(sorted((tally.miss() for tally in list(self._tallies.values())), key=lambda miss: -miss.calls))

    def _warn(self, choice: Choice) -> None:
        operator, problem = choice.instance.operator.name, choice.instance.problem
        kernel = operator, choice.gpu.name, tuple(getattr(problem, name) for name in statics(problem))
        if self._strict:
            raise UsageError(f"{operator}: no record serves this problem, and TUNER_STRICT is set: `{choice.command}`")
        if kernel not in self._warned:
            self._warned.add(kernel)
            runs = f"{operator} runs {choice.instance.implementation.name} with its default config"
            text = f"{runs}; tune it: `{choice.command}`"
            warnings.warn(text, UntunedWarning, stacklevel=_callers())


def _callers() -> int:
    """Frames from who calls this up to the application: the first that is neither of this program nor of torch."""
    skipped = [Path(module.__file__ or "").parent for name in ("tuner", "torch") if (module := sys.modules.get(name))]
    files = [Path(frame.f_code.co_filename) for frame, _ in walk_stack(sys._getframe(1))]
    ours = [any(file.is_relative_to(folder) for folder in skipped) for file in files]
    return ours.index(False) + 1 if False in ours else len(files)
