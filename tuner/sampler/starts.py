"""What is tried before a model is asked: given configs, the best of a prior, then a balanced design."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.sampler.history import History
from tuner.space import Array, Space

_FIRST = 6  # results before a model is asked
_WORKING = 3  # of which at least so many are valid
_DRAWN = 30  # configs that compete for a place in the design


class Starts:
    """The given configs in order, then configs whose values were tried least."""

    def __init__(self, space: Space[Any], rng: np.random.Generator, given: Sequence[int], balanced: int = 0) -> None:
        self._space, self._rng = space, rng
        self._given = tuple(dict.fromkeys(given))
        self._count = max(_FIRST, len(self._given) + balanced)

    def next(self, history: History) -> int | None:
        """The next start; None once a model can be asked."""
        given = first_free(self._given, history)
        if given is not None:
            return given
        if len(history.known) < self._count or np.count_nonzero(history.worked) < _WORKING:
            return self._least_tried(history)
        return None

    def _least_tried(self, history: History) -> int:
        """Of some free configs, the one whose values are the least tried, weighed by how many choices there are."""
        drawn = free(len(self._space), history.known, _DRAWN, self._rng)
        codes, known = self._space.codes[drawn], self._space.codes[history.known]
        sizes = np.array([len(values) for values in self._space.choices.values()])
        seen = (codes[:, None, :] == known[None, :, :]).sum(axis=1) @ sizes
        return int(drawn[np.argmin(seen)])


def first_free(given: Sequence[int], history: History) -> int | None:
    """The first of the given configs that is not known; None when all are."""
    known = set(history.known.tolist())
    return next((index for index in given if index not in known), None)


def free(configs: int, known: Array, count: int, rng: np.random.Generator) -> Array:
    """Up to `count` distinct indices below `configs` that are not `known`, in random order."""
    wanted = min(configs, count + len(known))
    drawn = rng.choice(configs, size=wanted, replace=False)
    return drawn[~np.isin(drawn, known)][:count]
