"""The implementations of an operator racing each other: one sampler each, tries dealt to those still in the running."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.evaluate import Candidate
from tuner.operator import Implementation
from tuner.sampler import Sampler
from tuner.space import Space

_HOPELESS = 2.0  # an implementation whose best is this much worse than the best of all gets no more tries
_ENOUGH = 8  # … once it has had as many
_RANKED_AT_MOST = 50_000  # configs of a space that are ranked before the search; beyond, the sampler starts blind


@dataclass
class Lane:
    """One implementation in the race."""

    implementation: Implementation[Any, Any]
    space: Space[Any]
    sampler: Sampler
    told: int = 0
    best: float = math.inf
    open: bool = True
    closed_because: str = ""

    def close(self, why: str) -> None:
        self.open, self.closed_because = False, why


class Race:
    """Ask for configs to try, tell what became of them. Never asks for one that it was told of."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = {lane.implementation.name: lane for lane in lanes}

    def ask(self, count: int) -> list[Candidate]:
        """Up to `count` candidates; none when every space in the running is exhausted."""
        found: list[Candidate] = []
        while len(found) < count and (running := self._running()):
            for i, lane in enumerate(running):
                left = count - len(found)
                share = math.ceil(left / (len(running) - i)) if left else 0
                indices = lane.sampler.ask(share) if share else []
                found += [Candidate(lane.implementation, lane.space[index]) for index in indices]
                if len(indices) < share:
                    lane.close("its space is exhausted")
        return found

    def tell(self, candidate: Candidate, value: float | None) -> None:
        """What a candidate came to; None: it failed."""
        lane = self.lanes[candidate.implementation.name]
        lane.sampler.tell(lane.space.index(candidate.config), value)
        lane.told += 1
        lane.best = min(lane.best, math.inf if value is None else value)

    def drop_hopeless(self) -> None:
        """Close the lanes that have had enough tries and are far behind."""
        best = min(lane.best for lane in self.lanes.values())
        for lane in self._running():
            if lane.told >= _ENOUGH and lane.best > _HOPELESS * best:
                lane.close(f"its best of {lane.told} is over {_HOPELESS:g} × the best of all")

    def expected_improvement(self) -> float | None:
        """The largest relative gain that a sampler still expects; None while one cannot say."""
        gains = [lane.sampler.expected_improvement for lane in self._running()]
        known = [gain for gain in gains if gain is not None]
        return max(known) if known and len(known) == len(gains) else None

    def knows(self, candidate: Candidate) -> bool:
        """Whether a candidate belongs to one of the spaces."""
        lane = self.lanes.get(candidate.implementation.name)
        return lane is not None and lane.space.refusal(candidate.config) is None

    def importance(self) -> dict[str, Mapping[str, float]]:
        """Per implementation, how much of the spread each parameter explains."""
        return {name: lane.sampler.importance() for name, lane in self.lanes.items() if lane.told >= 2}

    def _running(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.open]


def lane(
    implementation: Implementation[Any, Any],
    problem: Any,
    arch: Arch,
    prior: Callable[[Candidate], float],
    method: str,
    seed: int,
    tries: int,
) -> Lane:
    """An implementation at the start: its default config first, then what the prior ranks best."""
    space = implementation.space(problem, arch)
    starts = (space.index(implementation.default(problem, arch)),) if len(space) else ()
    ranked = _prior(implementation, space, prior)
    method = "exhaustive" if len(space) <= tries else method
    return Lane(implementation, space, Sampler(space, method=method, seed=seed, starts=starts, prior=ranked))


def _prior(
    implementation: Implementation[Any, Any], space: Space[Any], prior: Callable[[Candidate], float]
) -> np.ndarray[Any, Any] | None:
    if not 0 < len(space) <= _RANKED_AT_MOST:
        return None
    return np.array([prior(Candidate(implementation, config)) for config in space])
