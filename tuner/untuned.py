"""Calls that no record serves: counted by problem, warned of once a kernel and GPU, or refused."""

import threading
import warnings
from dataclasses import dataclass
from typing import Any

from tuner.choice import Choice, search_command
from tuner.errors import UsageError
from tuner.operator import Operator, canonical, statics, to_fields
from tuner.result import Fields

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


class Tally:
    """Counts the calls of one problem, from any thread."""

    def __init__(self, operator: Operator[Any], choice: Choice) -> None:
        self._operator, self._choice = operator, choice
        self._calls, self._lock = 0, threading.Lock()

    def add(self) -> None:
        with self._lock:
            self._calls += 1

    def miss(self) -> Miss:
        problem, gpu = self._choice.problem, self._choice.gpu
        command = search_command(self._operator, problem, gpu)
        return Miss(self._operator.name, to_fields(problem), gpu.name, self._calls, command)


class Untuned:
    """The tallies of one dispatcher. `strict` makes a miss a UsageError."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._tallies: dict[object, Tally] = {}
        self._warned: set[object] = set()

    def tally(self, operator: Operator[Any], choice: Choice, depth: int) -> Tally:
        """The tally of a problem; warns, `depth` callers up, of the first problem with its static fields on a GPU."""
        self._complain(operator, choice, depth + 1)
        key = operator.name, choice.gpu.name, canonical(choice.problem)
        if key not in self._tallies and len(self._tallies) >= _REMEMBERED:
            del self._tallies[next(iter(self._tallies))]
        return self._tallies.setdefault(key, Tally(operator, choice))

    def misses(self) -> tuple[Miss, ...]:
        """The most frequent first."""
        return tuple(sorted((each.miss() for each in list(self._tallies.values())), key=lambda miss: -miss.calls))

    def _complain(self, operator: Operator[Any], choice: Choice, depth: int) -> None:
        kernel = operator.name, choice.gpu.name, tuple(getattr(choice.problem, n) for n in statics(operator.problem))
        if self._strict:
            command = search_command(operator, choice.problem, choice.gpu)
            raise UsageError(f"{operator.name}: no record serves this problem, and TUNER_STRICT is set: `{command}`")
        if kernel not in self._warned:
            self._warned.add(kernel)
            command = search_command(operator, choice.problem, choice.gpu)
            text = f"{operator.name} runs {choice.implementation.name} with its default config; tune it: `{command}`"
            warnings.warn(text, UntunedWarning, stacklevel=depth + 1)
