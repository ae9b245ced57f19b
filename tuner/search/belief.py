"""What is believed of a space before a search: orders of its configs, each kept while results bear it out."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.search.sampler.observations import Observations, Prior, ranks
from tuner.spec.space import Array


@dataclass(frozen=True, eq=False)
class Belief:
    """A cost of every config from one source, only good to compare: a prediction, or results from elsewhere."""

    source: str  # "prediction", "history of H100"
    cost: Array  # [configs], lower is better, any unit; NaN where it is not known
    measured: bool = False  # learnt from results elsewhere

    def correlation(self, results: Mapping[int, float | None], drawn: Collection[int]) -> float | None:
        """Spearman's rank correlation with the first results of random tries that work; None before there are five.

        `results` maps indices of configs to values in the order in which they came, None: it failed; `drawn` are those
        that neither a belief nor a model chose.
        """
        return Prior(self.cost).correlation(_observations(results), drawn)

    def holds(self, results: Mapping[int, float | None], drawn: Collection[int]) -> bool:
        """Whether the results leave it standing."""
        return Prior(self.cost).holds(_observations(results), drawn)


def _observations(results: Mapping[int, float | None]) -> Observations:
    values = [np.inf if value is None else value for value in results.values()]
    return Observations(np.array([*results], int), np.array(values), np.zeros(0, int))


def together(beliefs: Sequence[Belief]) -> Array | None:
    """One cost of every config [configs]: the mean of the beliefs' ranks on a logarithmic axis; None without any.

    The axis gives the first hundredth of the configs half of the room: who is best matters, who is worst does not.
    """
    if len(beliefs) < 2:
        return beliefs[0].cost if beliefs else None
    cost: Array = np.mean([np.log1p(ranks(each.cost)) for each in beliefs], axis=0)
    return cost
