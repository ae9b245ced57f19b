"""Transfer between recordings: the results on a first GPU as the prior for a second one."""

from __future__ import annotations

import math
from typing import Any

from tuner.search.replay.recording import Recording, indices_of
from tuner.search.sampler import Sampler, predict
from tuner.spec.space import Array


def prior(recording: Recording, past: Recording, tries: int, seed: int) -> Array | None:
    """Return a predicted cost of each config of `recording`, from a search of `tries` on `past`.

    Returns None if fewer than eight of the results are valid in the new space. Raises UsageError if a parameter of
    `recording` does not exist in `past`.
    """
    tried = _searched(past, tries, seed)
    configs = [_fields(past, index) for index in tried]
    indices = indices_of(configs, recording.space)
    values = [value if math.isfinite(value) else None for value in past.values[list(tried)].tolist()]
    known = {index: value for index, value in zip(indices, values, strict=True) if index is not None}
    return predict(recording.space, known)


def _searched(past: Recording, tries: int, seed: int) -> list[int]:
    sampler, evaluate = Sampler(past.space, seed=seed), past.evaluate(None)
    asked: list[int] = []
    while len(asked) < tries and (batch := sampler.ask(1)):
        for index in batch:
            sampler.tell(index, evaluate(index))
        asked += batch
    return asked


def _fields(recording: Recording, index: int) -> dict[str, Any]:
    config = recording.space[index]
    return {name: getattr(config, name) for name in recording.space.names}
