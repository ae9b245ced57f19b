"""A search space whose cost is a valley with a failing corner, and a search of it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tuner.search.sampler import Sampler
from tuner.spec.space import Constraint, Space

POWERS = tuple(1 << k for k in range(7))


@dataclass(frozen=True, slots=True)
class Config:
    rows: int
    columns: int
    layout: str
    threads: int
    prefetch: bool


SPACE = Space(
    Config,
    {
        "rows": POWERS,
        "columns": POWERS,
        "layout": ("row", "column", "swizzled"),
        "threads": (32, 64, 96, 128, 160, 192, 224, 256),
        "prefetch": (False, True),
    },
    (Constraint("a thread owns an element", lambda c: c.rows * c.columns >= c.threads),),
)


def cost(config: Config) -> float | None:
    """A landscape with one valley, an alignment effect, an interaction, and a failing corner."""
    if config.rows * config.columns > 2048:
        return None
    tile = math.log2(config.rows * config.columns / 512) ** 2 + 0.3 * math.log2(config.rows / config.columns) ** 2
    aligned = 0.0 if config.threads in (128, 256) else 0.7
    return 1 + tile + aligned + {"row": 0.5, "column": 1.0, "swizzled": 0.0}[config.layout] + 0.2 * config.prefetch


COSTS = [cost(config) for config in SPACE]
OPTIMUM = min(value for value in COSTS if value is not None)
GOOD = np.array([10.0 if value is None else value for value in COSTS])  # a prior that is exact


def search(sampler: Sampler, tries: int, batch: int = 1) -> list[int]:
    """Ask and tell; return the configs in order."""
    asked: list[int] = []
    while len(asked) < tries and (indices := sampler.ask(min(batch, tries - len(asked)))):
        for index in indices:
            sampler.tell(index, COSTS[index])
        asked += indices
    return asked


def asked_one_by_one(sampler: Sampler) -> Iterator[int]:
    """Yield what a sampler asks; the caller sends the cost of each before the next one."""
    while batch := sampler.ask(1):
        yield from batch
