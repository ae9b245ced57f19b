"""The ranking of attempts by one kind of evidence, and why the others lost or failed."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.base import canonical_json
from tuner.base.fields import Fields
from tuner.results.attempt import Attempt, Evidence, Failed, Stage
from tuner.results.ranking import order
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict

Key = tuple[str, str]
NOTABLE = 0.005  # fraction of the winner's cost; smaller differences of a term explain nothing


@dataclass(frozen=True, slots=True)
class Entry:
    """A config that succeeded."""

    index: int  # of its first attempt, in order, from 0
    attempt: Attempt  # the last one, which decides
    rank: int  # 1 is the winner
    value: float  # µs for measured evidence, the model's cost otherwise
    relative: float  # value / the winner's; below 1 for a config that ranks behind because of flaws

    @property
    def flaws(self) -> tuple[str, ...]:
        return self.attempt.resources.flaws if self.attempt.resources else ()


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Attempts with the same failure: the same stage, and reasons that differ only in numbers."""

    stage: Stage
    reason: str  # of the first attempt
    log: str  # of the first attempt
    tries: tuple[int, ...]  # indices of the attempts


@dataclass(frozen=True, slots=True)
class Delta:
    """The difference of a predicted term between a config and the winner, as a fraction of the winner's cost."""

    term: str
    share: float


def key(implementation: str, config: Fields) -> Key:
    """Return a key that is equal for attempts at the same config."""
    return implementation, canonical_json.encode(config)


def key_of(attempt: Attempt) -> Key:
    return key(attempt.identity.implementation, attempt.config)


def judged(attempts: Sequence[Attempt], verdicts: Mapping[int, Verdict]) -> tuple[Attempt, ...]:
    """Return the attempts, with failed verdicts turned into failures."""
    return tuple(_judge(attempt, verdicts.get(index)) for index, attempt in enumerate(attempts))


def _judge(attempt: Attempt, verdict: Verdict | None) -> Attempt:
    if verdict is None or verdict.ok or attempt.failure is not None:
        return attempt
    stage = Stage.EMULATE if verdict.findings and (verdict.where == "emulator" or verdict.unseen) else Stage.VERIFY
    return replace(attempt, failure=Failed(stage, verdict.reason, "\n".join((*verdict.findings, *verdict.checks))))


def value_of(attempt: Attempt, evidence: Evidence) -> float | None:
    """Return the time in µs or the predicted cost, depending on the evidence; None if it is missing."""
    if attempt.failure is not None:
        return None
    if evidence is Evidence.MEASURED:
        value = attempt.measurement.time_us if attempt.measurement else math.nan
    else:
        value = attempt.prediction.cost if attempt.prediction else math.nan
    return value if math.isfinite(value) else None


def standing(attempts: Sequence[Attempt], evidence: Evidence, record: TuningRecord | None) -> tuple[Entry, ...]:
    """Return the successful configs, best first: the record's, then those without flaws, then by value.

    The last of several attempts at one config decides: a config that failed a later check has no rank.
    """
    winner = key(record.identity.implementation, record.config) if record else None
    first: dict[Key, int] = {}
    for index, attempt in enumerate(attempts):
        first.setdefault(key_of(attempt), index)
    last = {key_of(attempt): attempt for attempt in attempts}
    ranked = [(k, a, v) for k, a in last.items() if (v := value_of(a, evidence)) is not None]
    ranked.sort(key=lambda item: (item[0] != winner, order(item[1], item[2])))
    base = ranked[0][2] if ranked else 1.0
    return tuple(Entry(first[k], a, rank, v, v / base if base else 1.0) for rank, (k, a, v) in enumerate(ranked, 1))


def machine_code(entry: Entry) -> object:
    """Return a key that is equal for entries with the same instructions and launch; unique if unknown."""
    resources = entry.attempt.resources
    if resources is None or not resources.sass_digest:
        return key_of(entry.attempt)
    return resources.sass_digest, entry.attempt.identity.plan


def predicted_ranks(attempts: Iterable[Attempt]) -> dict[Key, int]:
    """Return the rank of every predicted config among the predictions, from 1."""
    costs = {key_of(attempt): attempt.prediction.cost for attempt in attempts if attempt.prediction}
    return {k: rank for rank, k in enumerate(sorted(costs, key=costs.__getitem__), 1)}


def losses(entry: Entry, winner: Entry) -> tuple[Delta, ...]:
    """Return up to three predicted terms in which `entry` differs notably from the winner, the largest first."""
    prediction, best = entry.attempt.prediction, winner.attempt.prediction
    if prediction is None or best is None or prediction.model != best.model or not best.cost:
        return ()
    own_terms, best_terms = numbers(prediction.terms), numbers(best.terms)
    names = dict.fromkeys((*best_terms, *own_terms))
    deltas = [Delta(name, (own_terms.get(name, 0.0) - best_terms.get(name, 0.0)) / best.cost) for name in names]
    notable = [delta for delta in deltas if abs(delta.share) >= NOTABLE]
    return tuple(sorted(notable, key=lambda delta: -delta.share)[:3])


def numbers(terms: Fields) -> dict[str, float]:
    """Return the terms that are finite numbers."""
    pairs = ((name, value) for name, value in terms.items() if isinstance(value, int | float))
    return {name: float(value) for name, value in pairs if math.isfinite(value)}


def parameters(configs: Iterable[Fields]) -> tuple[str, ...]:
    """Return every parameter of any config, in order of appearance."""
    return tuple(dict.fromkeys(name for config in configs for name in config))


def shared_fields(configs: Sequence[Fields]) -> Fields:
    """Return the fields with the same value in all configs."""
    absent = object()
    first: Fields = configs[0] if configs else {}
    return {name: value for name, value in first.items() if all(c.get(name, absent) == value for c in configs)}


def failures(attempts: Sequence[Attempt]) -> tuple[FailureGroup, ...]:
    """Return failed attempts by stage, in stage order, then the most frequent reason first."""
    groups: dict[tuple[Stage, str], list[int]] = {}
    for index, attempt in enumerate(attempts):
        if attempt.failure is not None:
            likeness = re.sub(r"\d[\d.,]*", "#", attempt.failure.reason)
            groups.setdefault((attempt.failure.stage, likeness), []).append(index)
    order = list(Stage)
    failure_groups = [_group(attempts, tries) for tries in groups.values()]
    return tuple(sorted(failure_groups, key=lambda group: (order.index(group.stage), -len(group.tries), group.tries)))


def _group(attempts: Sequence[Attempt], tries: Sequence[int]) -> FailureGroup:
    failure = attempts[tries[0]].failure
    assert failure is not None
    return FailureGroup(failure.stage, failure.reason, failure.log, tuple(tries))


def best_so_far(attempts: Sequence[Attempt], entries: Sequence[Entry]) -> tuple[float | None, ...]:
    """Return, after each attempt, the value of the best-ranked config tried so far."""
    entered = {entry.index: entry for entry in entries}
    best: Entry | None = None
    values = []
    for index in range(len(attempts)):
        entry = entered.get(index)
        if entry is not None and (best is None or entry.rank < best.rank):
            best = entry
        values.append(best.value if best else None)
    return tuple(values)
