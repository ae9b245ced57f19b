"""The contents of a page for one problem, computed from its ReportData before a template uses it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.base.fields import Fields, formatted
from tuner.evaluate.predict.cost import TERMS
from tuner.report.data import ReportData
from tuner.report.rivals import Rival, rivals
from tuner.report.standing import (
    Delta,
    Entry,
    FailureGroup,
    Key,
    failures,
    judged,
    key,
    key_of,
    losses,
    machine_code,
    numbers,
    parameters,
    predicted_ranks,
    shared_fields,
    standing,
    value_of,
)
from tuner.results.attempt import Attempt, Evidence, Measurement
from tuner.results.verdict import Verdict

FINALISTS = 8


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the best configs, compared with the winner."""

    entry: Entry
    is_default: bool
    fields: Fields  # its implementation and config
    twins: int  # other configs with the same machine code
    verdict: Verdict | None
    differs: frozenset[str]  # parameters whose value differs from the winner's
    deltas: tuple[Delta, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Try:
    """One row of the table of all attempts."""

    number: int  # from 1
    attempt: Attempt
    entry: Entry | None  # None: it failed, or a later attempt at the same config decides
    predicted_rank: int | None


@dataclass(frozen=True, slots=True)
class TryTable:
    """The attempts of one implementation, which share their parameters."""

    implementation: str
    parameters: tuple[str, ...]
    tries: tuple[Try, ...]

    @property
    def n_failed(self) -> int:
        return sum(row.attempt.failure is not None for row in self.tries)


@dataclass(frozen=True, slots=True)
class Profile:
    """Predicted terms, the largest first, as fractions of the winner's cost, one row per entry.

    Terms overlap in time, so they do not add up to a cost.
    """

    terms: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    largest: float

    @property
    def meanings(self) -> dict[str, str]:
        """The descriptions of the terms in the current model."""
        return {term: TERMS[term] for term in self.terms if term in TERMS}


@dataclass(frozen=True, slots=True)
class Section:
    data: ReportData
    id: str
    title: str
    label: str  # distinguishes it from other sections of the page
    of: int  # number of problems on the page
    attempts: tuple[Attempt, ...]  # failed verdicts count as failures
    entries: tuple[Entry, ...]  # best first
    finalists: tuple[Finalist, ...]
    rivals: tuple[Rival, ...]  # the best of the other implementations
    shared: Fields  # fields with the same value in all finalists
    varying: tuple[str, ...]  # the other parameters of the finalists
    failures: tuple[FailureGroup, ...]
    tables: tuple[TryTable, ...]  # one per implementation, the winner's first
    profile: Profile | None

    @property
    def subject(self) -> str:
        return f"{self.data.operator} on {self.data.gpu}"

    @property
    def chosen_fields(self) -> Fields:
        """The problem's fields that do not have their default value; all if every field has it."""
        chosen = {name: value for name, value in self.data.problem.items() if name not in self.data.defaults}
        return chosen or self.data.problem

    @property
    def default_fields(self) -> Fields:
        """The other fields of the problem."""
        return {name: value for name, value in self.data.problem.items() if name not in self.chosen_fields}

    @property
    def measured(self) -> bool:
        return self.data.evidence is Evidence.MEASURED

    @property
    def winner(self) -> Entry | None:
        """The record's config, or the best one if none has a passing verdict."""
        return self.entries[0] if self.entries else None

    @property
    def time(self) -> Measurement | None:
        """The winner's time, from the final race if there was one, else from its attempt; None if nothing was timed."""
        if self.data.record is not None:
            return self.data.record.measurement
        return self.winner.attempt.measurement if self.winner else None

    @property
    def n_failed(self) -> int:
        return sum(attempt.failure is not None for attempt in self.attempts)

    @property
    def n_passed_over(self) -> int:
        """The number of configs with a better value than the winner's that rank behind it for their flaws."""
        return sum(entry.relative < 1 and bool(entry.flaws) for entry in self.entries)

    @property
    def commonest_failure(self) -> FailureGroup | None:
        return max(self.failures, key=lambda group: len(group.tries), default=None)

    @property
    def default(self) -> Attempt | None:
        """The default config's attempt, with its verdict."""
        default = self.data.default
        return next((a for a in self.attempts if default and key_of(a) == key_of(default)), default)

    @property
    def default_config(self) -> Fields:
        """The default config if it belongs to the winner's implementation; otherwise empty."""
        default, record = self.data.default, self.data.record
        same = default and record and default.identity.implementation == record.identity.implementation
        return default.config if default and same else {}

    @property
    def changed(self) -> Fields:
        """The winner's parameters that differ from the default; all if there is no default for comparison."""
        default, record = self.default_config, self.data.record
        config = record.config if record else {}
        return {name: value for name, value in config.items() if not default or default.get(name) != value}

    @property
    def over_default(self) -> float | None:
        """The ratio of the default config's value to the winner's."""
        value = value_of(self.default, self.data.evidence) if self.default else None
        return value / self.entries[0].value if value is not None and self.entries and self.entries[0].value else None

    @property
    def default_won(self) -> bool:
        return bool(self.entries and self.default and key_of(self.default) == key_of(self.entries[0].attempt))

    @property
    def per_minute(self) -> float | None:
        """Attempts per minute in this session; None if it made none."""
        search = self.data.search
        new = len(self.attempts) - search.resumed
        return 60 * new / search.seconds if new > 0 and search.seconds > 0 else None


def sections(data: Sequence[ReportData]) -> tuple[Section, ...]:
    """Return one section per problem; a title contains the fields in which the problems of its operator differ."""
    common = shared_fields([_identity(problem) for problem in data])
    problems: dict[str, list[Fields]] = {}
    for problem in data:
        problems.setdefault(problem.operator, []).append(problem.problem)
    alike = {operator: shared_fields(of_operator) for operator, of_operator in problems.items()}
    result = []
    for number, problem in enumerate(data, 1):
        shared = alike[problem.operator]
        distinct = formatted({name: value for name, value in problem.problem.items() if name not in shared})
        result.append(
            _section(problem, f"p{number}", _title(problem, distinct), _label(problem, common, distinct), len(data))
        )
    return tuple(result)


def _identity(data: ReportData) -> Fields:
    return {"operator": data.operator, "gpu": data.gpu}


def _title(data: ReportData, distinct: str) -> str:
    return f"{data.operator} on {data.gpu}" + (f": {distinct}" if distinct else "")


def _label(data: ReportData, common: Fields, distinct: str) -> str:
    names = [value for name, value in _identity(data).items() if name not in common]
    return " ".join(filter(None, (*map(str, names), distinct))) or f"{data.operator} on {data.gpu}"


def _section(data: ReportData, id: str, title: str, label: str, of: int) -> Section:
    attempts = judged(data.attempts, data.verdicts)
    entries = standing(attempts, data.evidence, data.record)
    finalists = _finalists(data, entries)
    configs = [finalist.fields for finalist in finalists]
    shared = shared_fields(configs)
    return Section(
        data=data,
        id=id,
        title=title,
        label=label,
        of=of,
        attempts=attempts,
        entries=entries,
        finalists=finalists,
        rivals=rivals(
            attempts,
            entries,
            dict.fromkeys(data.implementations, "") | {s.implementation: s.closed for s in data.spaces},
        ),
        shared=shared,
        varying=tuple(name for name in parameters(configs) if name not in shared),
        failures=failures(attempts),
        tables=_tables(_tries(attempts, entries), entries),
        profile=profile([finalist.entry for finalist in finalists]),
    )


def _with_implementation(entry: Entry) -> Fields:
    return {"implementation": entry.attempt.identity.implementation, **entry.attempt.config}


def _finalists(data: ReportData, entries: Sequence[Entry]) -> tuple[Finalist, ...]:
    """Return the best configs with distinct machine code, and the default."""
    groups: dict[object, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(machine_code(entry), []).append(entry)
    default = key_of(data.default) if data.default else None
    chosen = [group[0] for group in list(groups.values())[:FINALISTS]]
    chosen += [entry for entry in entries if key_of(entry.attempt) == default and entry not in chosen]
    verdicts = _verdicts(data)
    return tuple(
        Finalist(
            entry=entry,
            is_default=key_of(entry.attempt) == default,
            fields=_with_implementation(entry),
            twins=len(groups[machine_code(entry)]) - 1,
            verdict=verdicts.get(key_of(entry.attempt)),
            differs=_differences(entry, entries[0]),
            deltas=losses(entry, entries[0]),
            remarks=_remarks(entry, entries[0]),
        )
        for entry in chosen
    )


def _verdicts(data: ReportData) -> Mapping[Key, Verdict]:
    by_key = {key_of(data.attempts[index]): verdict for index, verdict in data.verdicts.items()}
    if data.record is not None:
        by_key[key(data.record.identity.implementation, data.record.config)] = data.record.verdict
    return by_key


def _differences(entry: Entry, winner: Entry) -> frozenset[str]:
    config, best = _with_implementation(entry), _with_implementation(winner)
    return frozenset(name for name in parameters((config, best)) if config.get(name) != best.get(name))


def _remarks(entry: Entry, winner: Entry) -> tuple[str, ...]:
    """Return other facts that decided between a config and the winner."""
    if entry is winner:
        return ()
    remarks = []
    time, best = entry.attempt.measurement, winner.attempt.measurement
    if entry.flaws and not winner.flaws:
        remarks.append(f"{'; '.join(entry.flaws)}: ranked behind all that is clean")
    if machine_code(entry) == machine_code(winner):
        remarks.append("same machine code as the winner")
    elif time is not None and best is not None and time.overlaps(best):
        remarks.append("tie: the intervals overlap")
    elif time is not None and entry.value < winner.value and not entry.flaws:
        remarks.append("faster when it was tried: the final race decided")
    elif time is None and entry.value == winner.value:
        remarks.append("tie: the same predicted cost")
    elif time is None and entry.value < winner.value and not entry.flaws:
        remarks.append("tie: so little decides nothing, and the winner is nearer to its default")
    return tuple(remarks)


def _tries(attempts: Sequence[Attempt], entries: Sequence[Entry]) -> tuple[Try, ...]:
    entered = {entry.index: entry for entry in entries}
    ranks = predicted_ranks(attempts)
    return tuple(
        Try(index + 1, attempt, entered.get(index), ranks.get(key_of(attempt)) if attempt.prediction else None)
        for index, attempt in enumerate(attempts)
    )


def _tables(tries: Sequence[Try], entries: Sequence[Entry]) -> tuple[TryTable, ...]:
    groups: dict[str, list[Try]] = {entries[0].attempt.identity.implementation: []} if entries else {}
    for row in tries:
        groups.setdefault(row.attempt.identity.implementation, []).append(row)
    return tuple(
        TryTable(name, parameters(row.attempt.config for row in rows), tuple(rows)) for name, rows in groups.items()
    )


def profile(entries: Sequence[Entry]) -> Profile | None:
    """Return the predicted terms of `entries` relative to the first one's cost; None if it has no prediction."""
    first = entries[0].attempt.prediction if entries else None
    if first is None or first.cost <= 0:
        return None
    terms_by_entry = [numbers(entry.attempt.prediction.terms) if entry.attempt.prediction else {} for entry in entries]
    peak = {name: max(terms.get(name, 0.0) for terms in terms_by_entry) for terms in terms_by_entry for name in terms}
    names = sorted((name for name in peak if peak[name] > 0), key=lambda name: -peak[name])
    rows = tuple(tuple(terms.get(name, 0.0) / first.cost for name in names) for terms in terms_by_entry)
    return Profile(tuple(names), rows, max((max(row) for row in rows if row), default=1.0)) if names else None
