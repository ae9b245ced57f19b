"""Stored attempts as rows of a recording, for T4 files or for replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.errors import UsageError
from tuner.results.attempt import Attempt, Stage
from tuner.search.replay.files import t4
from tuner.search.replay.recording import Row

_WORDS: Mapping[Stage, str] = {  # T4 has fewer stages
    Stage.RENDER: "compile",
    Stage.COMPILE: "compile",
    Stage.LIMIT: "runtime",
    Stage.EMULATE: "correctness",
    Stage.VERIFY: "correctness",
    Stage.LAUNCH: "runtime",
    Stage.TIME: "runtime",
}


def rows(attempts: Sequence[Attempt]) -> tuple[Row, ...]:
    """Return one row per attempt: measured microseconds if available, predicted cost otherwise.

    Raises UsageError if the attempts have several implementations, problems, GPUs or policies, whose values are not
    comparable.
    """
    identities = [attempt.identity for attempt in attempts]
    kinds = {(identity.implementation, identity.problem, identity.gpu, identity.policy) for identity in identities}
    if len(kinds) > 1:
        spelt = "; ".join(sorted(f"{name} for {gpu} by {policy}" for name, _, gpu, policy in kinds))
        raise UsageError(f"values of different searches do not compare: {spelt}. Name one --implementation")
    return tuple(_row(attempt) for attempt in attempts if not attempt.spared)


def document(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return a T4 document of attempts: "time" in microseconds, or the unitless "predicted_cost".

    Raises UsageError like `rows`, and if there is no attempt.
    """
    if not attempts:
        raise UsageError("there is no attempt to write: search first")
    measured = any(attempt.measurement is not None for attempt in attempts)
    return t4(rows(attempts), *(("microseconds", "time") if measured else ("", "predicted_cost")))


def _row(attempt: Attempt) -> Row:
    if attempt.failure is not None:
        return Row(attempt.config, None, failure=_WORDS[attempt.failure.stage])
    return Row(attempt.config, attempt.value)
