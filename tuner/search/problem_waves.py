"""The order in which problems learn from each other, independent of the machines that search them.

Problems with equal static fields are a family, whose members learn from each other's stored results. Their searches
form waves, each as large as all before it: 1, 1, 2, 4, 8 … The history of a search is what was stored before its wave
began, so that its result does not depend on which other searches of the wave are faster.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.search.request import SearchRequest
from tuner.spec.problem import statics


@dataclass(frozen=True, slots=True)
class Wave:
    """Problems of a family that are searched in parallel."""

    family: tuple[object, ...]
    number: int


def family_of(problem: object) -> tuple[object, ...]:
    """Return a key shared by problems that share their kernels."""
    return tuple(getattr(problem, name) for name in statics(problem))


def waves(requests: Sequence[SearchRequest]) -> list[Wave]:
    """Return the wave of each search. Without history a family is one wave."""
    seen: Counter[tuple[object, ...]] = Counter()
    waves = []
    for request in requests:
        family = family_of(request.problem)
        waves.append(Wave(family, seen[family].bit_length() if request.history else 0))
        seen[family] += 1
    return waves
