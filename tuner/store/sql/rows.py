"""Values ↔ rows of the tables, and the values that only the store has."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import RowMapping

from tuner.base.canonical import decode, encode
from tuner.base.fields import Fields, fields_from
from tuner.errors import StoreError
from tuner.results.attempt import Attempt, Evidence
from tuner.results.codec import attempt_from, race_from, to_data, verdict_from
from tuner.results.final_race import FinalRace
from tuner.results.proof import CheckedCode, Proof
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict
from tuner.store import lines
from tuner.store.sql.schema import IDENTITY

_PARTS = ("failure", "resources", "prediction", "measurement")


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """An attempt with its row's number, its search session and when it was stored (ISO 8601, UTC)."""

    id: int
    attempt: Attempt
    study: int | None
    created: str


@dataclass(frozen=True, slots=True)
class Study:
    """One search session. `ended` and `why` are None while it runs, and for ever when it was killed."""

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
    why: str | None  # it stopped


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a device at a time."""

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
    """Raises StoreError for a row that does not hold an attempt."""
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
    """A verdict, and the code that found it. Raises StoreError for a row that does not hold one."""
    try:
        data = decode(row["verdict"])
        return verdict_from(data), data.get("code", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable("verdict", row, error) from error


def record_row(record: TuningRecord, study: int | None) -> dict[str, Any]:
    """Raises StoreError for a record without the evidence that a record must have."""
    if reason := _refusal(record):
        raise StoreError(f"no record for {record.identity.operator} on {record.identity.gpu}: {reason}")
    line = lines.to_line(record)
    keys = {name: getattr(record.identity, name) for name in ("operator", "problem", "gpu")}
    digest = lines.digest_of(line)
    about = {"evidence": record.evidence.value, "created": record.created, "study": study}
    return keys | about | {"digest": digest, "record": line}


def record_of(row: RowMapping) -> TuningRecord:
    """Raises StoreError for a row that does not hold a record."""
    try:
        return lines.from_row(row["record"], row["digest"])
    except StoreError as error:
        raise _unreadable("record", row, error) from error


def race_row(race: FinalRace) -> dict[str, Any]:
    keys = {"operator": race.operator, "problem": race.problem, "gpu": race.gpu}
    return keys | {"created": now(), "race": encode(to_data(race))}


def race_of(row: RowMapping) -> FinalRace:
    """Raises StoreError for a row that does not hold a final race."""
    try:
        return race_from(decode(row["race"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable("race", row, error) from error


def proof_row(proof: Proof) -> dict[str, Any]:
    about = {"problem": proof.problem, "created": now(), "ok": proof.verdict.ok}
    return {**asdict(proof.code), **about, "verdict": encode(asdict(proof.verdict))}


def proof_of(row: RowMapping) -> Proof:
    """Raises StoreError for a row that does not hold a proof."""
    try:
        code = CheckedCode(**{name: row[name] for name in CheckedCode.__dataclass_fields__})
        return Proof(code, row["problem"], verdict_from(decode(row["verdict"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable("proof", row, error) from error


def study_of(row: RowMapping) -> Study:
    """Raises StoreError for a row that does not hold a study."""
    try:
        fields_from(decode(row["problem"]))
        return Study(**{**row, "versions": fields_from(decode(row["versions"]))})
    except (ValueError, TypeError) as error:
        raise _unreadable("study", row, error) from error


def facts_row(name: str, facts: Fields) -> dict[str, Any]:
    text = encode(facts)
    return {"name": name, "facts": text, "created": now(), "digest": lines.digest_of(f"{name}\n{text}")}


def facts_of(row: RowMapping) -> Facts:
    """Raises StoreError for a row that does not hold facts."""
    try:
        return Facts(row["name"], dict(decode(row["facts"])), row["created"])
    except (ValueError, TypeError) as error:
        raise _unreadable("facts", row, error) from error


def _refusal(record: TuningRecord) -> str:
    if not record.verdict.ok:
        return f"its verdict is not ok: {record.verdict.reason}"
    if (record.measurement if record.evidence is Evidence.MEASURED else record.prediction) is None:
        return f"it is said to be {record.evidence.value}, and holds no such figure"
    if not _is_canonical(record.identity.problem):
        return f"its problem is not canonical JSON: {record.identity.problem!r}"
    if not _is_utc(record.created):
        return f"its date {record.created!r} is not ISO 8601 in UTC, such as {now()}"
    return ""


def _is_canonical(problem: str) -> bool:
    try:
        fields = decode(problem)
    except ValueError:
        return False
    return isinstance(fields, dict) and encode(fields) == problem


def _is_utc(created: str) -> bool:
    try:
        offset = datetime.fromisoformat(created).utcoffset()
    except ValueError:
        return False
    return offset is not None and not offset


def _unreadable(what: str, row: RowMapping, error: Exception) -> StoreError:
    reason = f"{type(error).__name__}: {error}"
    return StoreError(f"{what} {row['id']} cannot be read ({reason}): put back a copy of the database")
