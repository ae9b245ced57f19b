"""Who won and by how much: attempts ranked by one kind of evidence, and why the others lost or failed."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.base import canonical
from tuner.base.fields import Fields
from tuner.results.attempt import Attempt, Evidence, Failed, Stage
from tuner.results.ranking import order
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict

Key = tuple[str, str]
NOTABLE = 0.005  # a term that moved by less of the winner's cost explains nothing


@dataclass(frozen=True, slots=True)
class Entry:
    """A config that came through."""

    index: int  # of its first attempt, in the order tried, from 0
    attempt: Attempt  # the last one, which decides
    rank: int  # 1 won
    value: float  # µs where the evidence is measured, the model's cost otherwise
    relative: float  # value over the winner's; under 1 for a config that is ranked behind for its flaws

    @property
    def flaws(self) -> tuple[str, ...]:
        return self.attempt.resources.flaws if self.attempt.resources else ()


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Attempts that failed alike: the same stage, and reasons that differ in numbers only."""

    stage: Stage
    reason: str  # of the first
    log: str  # of the first
    tries: tuple[int, ...]  # indices of the attempts


@dataclass(frozen=True, slots=True)
class Delta:
    """How much more of a predicted term a config has than the winner, as a fraction of the winner's cost."""

    term: str
    share: float


def key(implementation: str, config: Fields) -> Key:
    """What makes two attempts the same config."""
    return implementation, canonical.encode(config)


def key_of(attempt: Attempt) -> Key:
    return key(attempt.identity.implementation, attempt.config)


def judged(attempts: Sequence[Attempt], verdicts: Mapping[int, Verdict]) -> tuple[Attempt, ...]:
    """The attempts, those with a bad verdict turned into failures."""
    return tuple(_judge(attempt, verdicts.get(index)) for index, attempt in enumerate(attempts))


def _judge(attempt: Attempt, verdict: Verdict | None) -> Attempt:
    if verdict is None or verdict.ok or attempt.failure is not None:
        return attempt
    stage = Stage.EMULATE if verdict.findings and (verdict.where == "emulator" or verdict.unseen) else Stage.VERIFY
    return replace(attempt, failure=Failed(stage, verdict.reason, "\n".join((*verdict.findings, *verdict.checks))))


def value_of(attempt: Attempt, evidence: Evidence) -> float | None:
    """Time in µs or predicted cost, never one for the other; None where there is none."""
    if attempt.failure is not None:
        return None
    if evidence is Evidence.MEASURED:
        value = attempt.measurement.time_us if attempt.measurement else math.nan
    else:
        value = attempt.prediction.cost if attempt.prediction else math.nan
    return value if math.isfinite(value) else None


def standing(attempts: Sequence[Attempt], evidence: Evidence, record: TuningRecord | None) -> tuple[Entry, ...]:
    """The configs that came through, best first: the record's, then those without flaws, then by value.

    Of several attempts at one config the last decides: a config that failed its check later has no rank.
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
    """Equal for entries that run the same instructions in the same launch; unique where that is unknown."""
    resources = entry.attempt.resources
    if resources is None or not resources.sass_digest:
        return key_of(entry.attempt)
    return resources.sass_digest, entry.attempt.identity.plan


def predicted_ranks(attempts: Iterable[Attempt]) -> dict[Key, int]:
    """The place of every predicted config among the predictions, from 1."""
    costs = {key_of(attempt): attempt.prediction.cost for attempt in attempts if attempt.prediction}
    return {k: rank for rank, k in enumerate(sorted(costs, key=costs.__getitem__), 1)}


def losses(entry: Entry, winner: Entry) -> tuple[Delta, ...]:
    """The predicted terms in which `entry` differs notably from the winner, the heaviest first, at most three."""
    prediction, best = entry.attempt.prediction, winner.attempt.prediction
    if prediction is None or best is None or prediction.model != best.model or not best.cost:
        return ()
    own_terms, best_terms = numbers(prediction.terms), numbers(best.terms)
    names = dict.fromkeys((*best_terms, *own_terms))
    deltas = [Delta(name, (own_terms.get(name, 0.0) - best_terms.get(name, 0.0)) / best.cost) for name in names]
    notable = [delta for delta in deltas if abs(delta.share) >= NOTABLE]
    return tuple(sorted(notable, key=lambda delta: -delta.share)[:3])


def numbers(terms: Fields) -> dict[str, float]:
    """The terms that are finite numbers."""
    pairs = ((name, value) for name, value in terms.items() if isinstance(value, int | float))
    return {name: float(value) for name, value in pairs if math.isfinite(value)}


def parameters(configs: Iterable[Fields]) -> tuple[str, ...]:
    """Every parameter that any config has, in order of appearance."""
    return tuple(dict.fromkeys(name for config in configs for name in config))


def shared_fields(configs: Sequence[Fields]) -> Fields:
    """The fields that all configs have with the same value."""
    absent = object()
    first: Fields = configs[0] if configs else {}
    return {name: value for name, value in first.items() if all(c.get(name, absent) == value for c in configs)}


def failures(attempts: Sequence[Attempt]) -> tuple[FailureGroup, ...]:
    """Failed attempts by stage, in the order in which stages are tried, then the most frequent reason first."""
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
    """After each attempt, the value of the best-ranked config among those tried until then."""
    entered = {entry.index: entry for entry in entries}
    best: Entry | None = None
    values = []
    for index in range(len(attempts)):
        entry = entered.get(index)
        if entry is not None and (best is None or entry.rank < best.rank):
            best = entry
        values.append(best.value if best else None)
    return tuple(values)
