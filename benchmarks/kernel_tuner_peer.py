"""Kernel Tuner's search strategies on a recorded space, with a runner that looks values up."""

import contextlib
import io
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kernel_tuner import util
from kernel_tuner.interface import Options, strategy_map
from kernel_tuner.searchspace import Searchspace

from tuner.search.replay.recording import Recording

_UNLIMITED_THREADS = 1 << 30  # the recording decides which configs are valid
_FREE_CALLS = 60  # repeated or invalid proposals per try after which a strategy is considered stuck

Evaluate = Callable[[int], float | None]


def search(recording: Recording, strategy: str, budget: int, seed: int, evaluate: Evaluate) -> None:
    """Run a strategy with its default options for `budget` evaluations of distinct configs."""
    random.seed(seed)
    np.random.seed(seed)  # the strategies use the global generators
    # Each run needs a new Searchspace: it caches visited neighbours, which would carry over from one seed to the next.
    space = Searchspace(None, None, None, from_cache=_cache(recording))
    space.max_threads = _UNLIMITED_THREADS
    options = _options(space, strategy, budget)
    runner = _Runner(recording, evaluate, budget)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(util.StopCriterionReached):
        strategy_map[strategy].tune(space, runner, options)


def _cache(recording: Recording) -> dict[str, Any]:
    names = recording.space.names
    configs = [{name: getattr(config, name) for name in names} for config in recording.space]
    choices = {name: list(values) for name, values in recording.space.choices.items()}
    return {"tune_params": choices, "cache": {",".join(map(str, config.values())): config for config in configs}}


def _options(space: Searchspace, strategy: str, budget: int) -> Options:
    options = Options(
        objective=["time"],
        objective_higher_is_better=[False],
        strategy=strategy,
        strategy_options=Options({"max_fevals": budget}),
        tune_params=space.tune_params,
        restrictions=None,
        restrictions_unmodified=None,
        max_fevals=budget,
        simulation_mode=True,
        simulated_time=0,
        cache={},
        cachefile=None,
        metrics=None,
        eps=None,
        verbose=False,
        quiet=True,
    )
    options["budget"] = util.TuningBudget(None, budget)
    return options


class _Device:
    max_threads = _UNLIMITED_THREADS
    name = "recorded"

    def get_environment(self) -> dict[str, Any]:
        return {}


class _Runner:
    """The runner that a strategy calls to measure configs."""

    simulation_mode = True

    def __init__(self, recording: Recording, evaluate: Evaluate, budget: int) -> None:
        self.dev = _Device()
        self._space, self._evaluate = recording.space, evaluate
        self._known: dict[tuple[Any, ...], float | None] = {}
        self._index = {tuple(getattr(c, name) for name in c.__match_args__): i for i, c in enumerate(recording.space)}
        self._calls_left = _FREE_CALLS * budget

    def run(self, configs: Sequence[Sequence[Any]], options: Options) -> list[dict[str, Any] | None]:
        return [None if options.budget.is_done() else self._try(tuple(config), options) for config in configs]

    def _try(self, config: tuple[Any, ...], options: Options) -> dict[str, Any]:
        self._calls_left -= 1
        if self._calls_left < 0:
            raise util.StopCriterionReached("no progress")
        result = dict(zip(self._space.names, config, strict=True))
        if config not in self._index:  # rejected before compilation, at no cost
            return {**result, "__error__": util.InvalidConfig()}
        if config not in self._known:
            self._known[config] = self._evaluate(self._index[config])
            options.budget.add_evaluations(1)
        value = self._known[config]
        failed = {"time": util.RuntimeFailedConfig(), "__error__": util.RuntimeFailedConfig()}
        return {**result, **(failed if value is None else {"time": value})}

    def add_strategy_time(self, seconds: float) -> None:
        pass

    def get_device_info(self) -> _Device:
        return self.dev

    def get_environment(self, _options: Options | None = None) -> dict[str, Any]:
        return {}

    def shutdown(self) -> None:
        pass
