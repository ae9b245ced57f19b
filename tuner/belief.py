"""What is believed of a space before a search: orders of its configs, each kept while results bear it out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tuner.space import Array

_JUDGED_FROM, _JUDGED_TO = 8, 16  # results that judge a belief; later ones are all good, and rank by chance
_WRONG = 0.2  # rank correlation below which a belief is dropped


@dataclass(frozen=True, eq=False)
class Belief:
    """A cost of every config from one source, only good to compare: a prediction, or results from elsewhere."""

    source: str  # "prediction", "history of H100"
    cost: Array  # [configs], lower is better, any unit; NaN where it is not known

    def correlation(self, results: Mapping[int, float | None]) -> float | None:
        """Spearman's rank correlation with the first results that work; None before there are eight.

        `results` maps indices of configs to values in the order in which they came; None: it failed.
        """
        known = ((i, value) for i, value in results.items() if value is not None and not np.isnan(self.cost[i]))
        first = list(islice(known, _JUDGED_TO))
        if len(first) < _JUDGED_FROM:
            return None
        believed, found = self.cost[[index for index, _ in first]], np.array([value for _, value in first])
        if np.ptp(believed) == 0 or np.ptp(found) == 0:
            return None
        return float(np.corrcoef(_ranks(believed), _ranks(found))[0, 1])

    def holds(self, results: Mapping[int, float | None]) -> bool:
        """Whether the results leave it standing."""
        correlation = self.correlation(results)
        return correlation is None or correlation >= _WRONG


def together(beliefs: Sequence[Belief]) -> Array | None:
    """One cost of every config [configs]: the mean of the beliefs' ranks on a logarithmic axis; None without any.

    The axis gives the first hundredth of the configs half of the room: who is best matters, who is worst does not.
    """
    if len(beliefs) < 2:
        return beliefs[0].cost if beliefs else None
    cost: Array = np.mean([np.log1p(_ranks(each.cost)) for each in beliefs], axis=0)
    return cost


def _ranks(values: Array) -> Array:
    """Ranks from 0; equal values share the mean of theirs."""
    _, place, count = np.unique(np.nan_to_num(values, nan=np.inf), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: Array = (last - (count + 1) / 2)[place]
    return ranks
