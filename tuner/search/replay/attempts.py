"""Our own attempts as rows of a recording, to be written as T4 or searched again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.errors import UsageError
from tuner.results.attempt import Attempt, Stage
from tuner.search.replay.files import t4
from tuner.search.replay.recording import Row

_WORDS: Mapping[Stage, str] = {  # T4 knows fewer stages
    Stage.RENDER: "compile",
    Stage.COMPILE: "compile",
    Stage.LIMIT: "runtime",
    Stage.EMULATE: "correctness",
    Stage.VERIFY: "correctness",
    Stage.LAUNCH: "runtime",
    Stage.TIME: "runtime",
}


def rows(attempts: Sequence[Attempt]) -> tuple[Row, ...]:
    """A row an attempt that was made: measured microseconds where there are any, predicted cost otherwise.

    Raises UsageError when the attempts are of several implementations, problems, GPUs or policies, whose values do
    not compare.
    """
    identities = [attempt.identity for attempt in attempts]
    kinds = {(identity.implementation, identity.problem, identity.gpu, identity.policy) for identity in identities}
    if len(kinds) > 1:
        spelt = "; ".join(sorted(f"{name} for {gpu} by {policy}" for name, _, gpu, policy in kinds))
        raise UsageError(f"values of different searches do not compare: {spelt}. Name one --implementation")
    return tuple(_row(attempt) for attempt in attempts if not attempt.spared)


def document(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Attempts as a T4 document: "time" in microseconds, or "predicted_cost", which is no time and has no unit.

    Raises UsageError as `rows` does, and when there is no attempt.
    """
    if not attempts:
        raise UsageError("there is no attempt to write: search first")
    measured = any(attempt.measurement is not None for attempt in attempts)
    return t4(rows(attempts), *(("microseconds", "time") if measured else ("", "predicted_cost")))


def _row(attempt: Attempt) -> Row:
    if attempt.failure is not None:
        return Row(attempt.config, None, failure=_WORDS[attempt.failure.stage])
    return Row(attempt.config, attempt.value)
