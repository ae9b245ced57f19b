"""Conversion between values and rows of the tables, and the values that only the store has."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import RowMapping

from tuner.base.canonical_json import decode, encode
from tuner.base.fields import Fields, fields_from
from tuner.errors import StoreError
from tuner.results.attempt import Attempt, Evidence
from tuner.results.codec import attempt_from, race_from, to_data, verdict_from
from tuner.results.final_race import FinalRace
from tuner.results.proof import CheckedCode, Proof
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict
from tuner.store import canonical_lines, record_lines
from tuner.store.canonical_lines import Parts
from tuner.store.packed_problems import packed
from tuner.store.sql.schema import IDENTITY, RECORDS

RECORD_COLUMNS = tuple(column.name for column in RECORDS.c if column.name != "id")
_PARTS = ("failure", "resources", "prediction", "measurement")


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """An attempt with its row, its search session and the time at which it was stored (ISO 8601, UTC)."""

    id: int
    attempt: Attempt
    study: int | None
    created: str


@dataclass(frozen=True, slots=True)
class Study:
    """One search session. `ended` and `why` are None while it runs, and remain None if it is killed."""

    id: int
    operator: str
    problem: str  # canonical JSON
    gpu: str
    command: str  # the command line
    seed: int
    method: str
    effort: str
    budget: int  # tries
    versions: Fields
    started: str  # ISO 8601, UTC
    ended: str | None
    why: str | None  # the reason why it stopped


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a device at a given time."""

    name: str
    facts: Fields
    created: str  # ISO 8601, UTC


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def attempt_row(attempt: Attempt, study: int | None, created: str) -> dict[str, Any]:
    data = to_data(attempt)
    parts = {name: None if data[name] is None else encode(data[name]) for name in _PARTS}
    about = {"study": study, "created": created, "seconds": attempt.seconds}
    return {**about, **data["identity"], "config": encode(data["config"]), **parts}


def attempt_of(row: RowMapping) -> StoredAttempt:
    """Return the attempt in a row. Raises StoreError if the row is invalid."""
    try:
        data = {name: None if row[name] is None else decode(row[name]) for name in ("config", *_PARTS)}
        identity = {name: row[name] for name in IDENTITY}
        attempt = attempt_from(data | {"identity": identity, "seconds": row["seconds"]})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable("attempt", row, error) from error
    return StoredAttempt(row["id"], attempt, row["study"], row["created"])


def verdict_row(attempt: int, verdict: Verdict, code: str) -> dict[str, Any]:
    text = encode(asdict(verdict) | {"code": code})
    return {"attempt": attempt, "ok": verdict.ok, "created": now(), "verdict": text}


def verdict_of(row: RowMapping) -> tuple[Verdict, str]:
    """Return the verdict in a row, and the digest of the code that produced it. Raises StoreError if the row is
    invalid.
    """
    try:
        data = decode(row["verdict"])
        return verdict_from(data), data.get("code", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable("verdict", row, error) from error


def record_row(record: TuningRecord, study: int | None) -> dict[str, Any]:
    """Return the row of a record. Raises StoreError if the record lacks the evidence that it must have."""
    of = record.identity
    figure = record.measurement if record.evidence is Evidence.MEASURED else record.prediction
    fields = _canonical_fields(of.problem)
    if fields is None:
        raise StoreError(f"{_no_record(of.operator, of.gpu)}its problem is not canonical JSON: {of.problem!r}")
    parts = Parts(of.operator, of.problem, fields, of.gpu, record.evidence, record.verdict, figure, record.created)
    return dict(zip(RECORD_COLUMNS, _record_row(parts, record_lines.to_line(record), study), strict=True))


def imported_row(line: str) -> tuple[Any, ...]:
    """Return the row of a record's line, in the order of `RECORD_COLUMNS`. Raises StoreError if the line is invalid,
    and as `record_row` does.
    """
    if (parts := canonical_lines.parts(line)) is not None:
        return _record_row(parts, line, None)
    return tuple(record_row(record_lines.from_line(line), None).values())


def _record_row(parts: Parts, line: str, study: int | None) -> tuple[Any, ...]:
    if reason := _refusal(parts):
        raise StoreError(f"{_no_record(parts.operator, parts.gpu)}{reason}")
    family, sizes = packed(parts.fields)
    identity, evidence = (parts.operator, parts.problem, parts.gpu), parts.evidence.value
    return (study, *identity, evidence, parts.created, record_lines.digest_of(line), line, family, sizes)


def _no_record(operator: str, gpu: str) -> str:
    return f"no record for {operator} on {gpu}: "


def record_of(row: RowMapping) -> TuningRecord:
    """Return the record in a row. Raises StoreError if the row is invalid."""
    try:
        record = record_lines.from_row(row["record"], row["digest"])
    except StoreError as error:
        raise _unreadable("record", row, error) from error
    of = record.identity
    columns = {"operator": of.operator, "problem": of.problem, "gpu": of.gpu}
    columns["family"], columns["sizes"] = packed(decode(of.problem))
    if other := [name for name, value in columns.items() if row[name] != value]:
        raise _unreadable("record", row, StoreError(f"{', '.join(other)} are those of another record"))
    return record


def race_row(race: FinalRace) -> dict[str, Any]:
    keys = {"operator": race.operator, "problem": race.problem, "gpu": race.gpu}
    return keys | {"created": now(), "race": encode(to_data(race))}


def race_of(row: RowMapping) -> FinalRace:
    """Return the final race in a row. Raises StoreError if the row is invalid."""
    try:
        return race_from(decode(row["race"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable("race", row, error) from error


def proof_row(proof: Proof) -> dict[str, Any]:
    about = {"problem": proof.problem, "created": now(), "ok": proof.verdict.ok}
    return {**asdict(proof.code), **about, "verdict": encode(asdict(proof.verdict))}


def proof_of(row: RowMapping) -> Proof:
    """Return the proof in a row. Raises StoreError if the row is invalid."""
    try:
        code = CheckedCode(**{name: row[name] for name in CheckedCode.__dataclass_fields__})
        return Proof(code, row["problem"], verdict_from(decode(row["verdict"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable("proof", row, error) from error


def study_of(row: RowMapping) -> Study:
    """Return the study in a row. Raises StoreError if the row is invalid."""
    try:
        fields_from(decode(row["problem"]))
        values = {name: value for name, value in row.items() if name != "uuid"}
        return Study(**{**values, "versions": fields_from(decode(row["versions"]))})
    except (ValueError, TypeError) as error:
        raise _unreadable("study", row, error) from error


def facts_row(name: str, facts: Fields) -> dict[str, Any]:
    text = encode(facts)
    return {"name": name, "facts": text, "created": now(), "digest": record_lines.digest_of(f"{name}\n{text}")}


def facts_of(row: RowMapping) -> Facts:
    """Return the facts in a row. Raises StoreError if the row is invalid."""
    try:
        return Facts(row["name"], dict(decode(row["facts"])), row["created"])
    except (ValueError, TypeError) as error:
        raise _unreadable("facts", row, error) from error


def _refusal(parts: Parts) -> str:
    if not parts.verdict.ok:
        return f"its verdict is not ok: {parts.verdict.reason}"
    if parts.figure is None:
        return f"it is said to be {parts.evidence.value}, and holds no such figure"
    if not _is_utc(parts.created):
        return f"its date {parts.created!r} is not ISO 8601 in UTC, such as {now()}"
    return ""


def _canonical_fields(problem: str) -> Fields | None:
    try:
        fields = decode(problem)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and encode(fields) == problem else None


@lru_cache(maxsize=4096)
def _is_utc(created: str) -> bool:
    try:
        offset = datetime.fromisoformat(created).utcoffset()
    except ValueError:
        return False
    return offset is not None and not offset


def _unreadable(what: str, row: RowMapping, error: Exception) -> StoreError:
    reason = f"{type(error).__name__}: {error}"
    return StoreError(f"{what} {row['id']} cannot be read ({reason}): put back a copy of the database")
