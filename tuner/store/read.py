"""Reading records where they are, without SQLAlchemy: a SQLite file, a JSON-lines file or a folder of them."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tuner.arch import gpu
from tuner.base.canonical import decode
from tuner.base.fields import Fields
from tuner.errors import StoreError, UsageError
from tuner.results.attempt import Evidence
from tuner.results.codec import race_from
from tuner.results.final_race import FinalRace
from tuner.results.record import TuningRecord
from tuner.store import lines


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with where it was found, its problem as data, and the arch of its GPU (empty where that is unknown)."""

    record: TuningRecord
    place: str  # the file and the line or row
    problem: Fields
    arch: str


def read(source: str | Path) -> tuple[list[StoredRecord], list[str]]:
    """The records of a place, preferred ones first, and a sentence for all that could not be read there."""
    refused: list[str] = []
    found: list[StoredRecord] = []
    try:
        for name, line in _lines(source):
            try:
                found.append(_stored(lines.from_line(line), name))
            except StoreError as error:
                refused.append(f"{name}: {error}")
    except (StoreError, OSError, sqlite3.Error) as error:
        kind, url, _ = str(source).partition("://")
        refused.append(f"{f'{kind}://…' if url else source}: {error}")  # a URL may hold a password
    return sorted(found, key=_preference, reverse=True), refused


def races(source: str | Path) -> list[FinalRace]:
    """The final races of a SQLite file, oldest first; none where a place is something else, or older than races are."""
    path = Path(source).expanduser()
    if "://" in str(source) or is_text(source) or not path.exists():
        return []
    try:
        with closing(_open(path)) as connection:
            return [race_from(decode(text)) for (text,) in connection.execute("SELECT race FROM races ORDER BY id")]
    except (sqlite3.Error, KeyError, TypeError, ValueError):  # what is wrong with it is said by what reads its records
        return []


def _preference(found: StoredRecord) -> tuple[bool, str]:
    return found.record.evidence is Evidence.MEASURED, found.record.created


def _stored(record: TuningRecord, place: str) -> StoredRecord:
    return StoredRecord(record, place, decode(record.identity.problem), arch_of(record.identity.gpu))


@cache
def arch_of(name: str) -> str:
    """The arch of a GPU that a record names; empty for one that is unknown today."""
    try:
        return gpu(name).arch.name
    except UsageError:
        return ""


def _lines(source: str | Path) -> Iterable[tuple[str, str]]:
    """Each record's line, with a name for it."""
    if "://" in str(source):
        raise StoreError("a server is not read by applications: export its records to a .jsonl file and name that")
    path = Path(source).expanduser()
    if path.is_dir():
        return [line for file in sorted(path.glob("*.jsonl")) for line in _lines(file)]
    if not path.exists():
        raise StoreError("there is no such file")
    if is_text(source):
        return [(f"{path}, line {number}", line) for number, line in lines.lines(path)]
    return _rows(path)


def is_text(source: str | Path) -> bool:
    """Whether a place holds records as lines of text: a `.jsonl` file, or a folder of them."""
    path = Path(source).expanduser()
    return path.suffix == ".jsonl" or path.is_dir()


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    with closing(_open(path)) as connection:
        # The newest first, so that of two made in the same second the later one is preferred.
        for number, line in connection.execute("SELECT id, record FROM records ORDER BY id DESC"):
            yield f"{path}, record {number}", line


def _open(path: Path) -> sqlite3.Connection:
    """A connection that only reads; in a folder where SQLite cannot make its log, one that does without."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True)
    return connection
