"""Read access to records without SQLAlchemy, from an SQLite file, a JSON-lines file, or a folder of such files.

A source is opened once and parses the records of a problem on demand, so that an application reads only a few rows of a
database with many operators.
"""

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tuner.arch import gpu
from tuner.base.assets import DB
from tuner.base.canonical_json import decode, encode
from tuner.base.fields import Fields
from tuner.base.fork import ForkGuard
from tuner.errors import StoreError, UsageError
from tuner.results import codec
from tuner.results.attempt import Evidence
from tuner.results.final_race import FinalRace
from tuner.results.proof import CheckedCode
from tuner.results.record import TuningRecord
from tuner.store import bundle, locations, record_lines

MIGRATIONS = DB / "migrations"
VERSION_TABLE = "tuner_schema_version"
NOT_A_DATABASE = "it is not a SQLite database: name another file with --db, or move this one away"
DAMAGED = "it is damaged: put a copy back, or rescue what is readable with `sqlite3 OLD .recover | sqlite3 NEW`"
_SMALL = 16 << 20  # bytes; a quick check of this many takes about 15 ms
_READING = ForkGuard(
    "read records"
)  # SQLite holds process-wide locks, which a child must not inherit in the locked state
_OPERATOR = re.compile(r'"operator":"(\w+)"')  # in canonical JSON, which escapes quotes inside strings
_COMPUTING = (  # kind and name of what evaluates an expression of the database when its tables are read or written
    "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger')",
    "SELECT 'virtual table', name FROM sqlite_master WHERE type = 'table' AND (rootpage = 0 OR sql LIKE '%virtual%')",
    "SELECT 'generated column', m.name || '.' || c.name FROM sqlite_master m, pragma_table_xinfo(m.name) c "
    "WHERE m.type = 'table' AND c.hidden > 1",
)
_UNREADABLE = sqlite3.Error, UnicodeDecodeError  # the latter if the error message quotes a damaged schema
_SERVED = ("records", "proofs")  # tables that decide what an application runs
_COLUMNS = "id, digest, record, operator, problem, gpu"


class Key(NamedTuple):
    """What a record applies to."""

    operator: str
    problem: str  # canonical JSON of all its fields
    gpu: str


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with its location, its problem as data, and the arch of its GPU (empty if unknown)."""

    record: TuningRecord
    place: str  # the file and the line or row
    problem: Fields
    arch: str
    number: int = 0  # of the line or row; within a source, a larger number is newer

    @property
    def key(self) -> Key:
        identity = self.record.identity
        return Key(identity.operator, identity.problem, identity.gpu)

    @property
    def rank(self) -> tuple[bool, int]:
        """Return the sort key within one source: measured before predicted, then the newest by row order.

        Dates are ignored, because a clock may be set back.
        """
        return self.record.evidence is not Evidence.MEASURED, -self.number


class _Row(NamedTuple):
    number: int
    digest: str | None
    line: str
    key: Key | None = None  # from its columns, or the start of its line


class RecordSource(ABC):
    """The records of one file or folder. Methods raise StoreError if it cannot be read."""

    def __init__(self, name: str) -> None:
        self.name = label(name)
        self.shipped = (
            False  # records that ship with the package serve only if no other source has a record for the GPU's arch
        )
        self.refused: dict[
            str, str
        ] = {}  # lines or rows that contain no valid record → the reason; only those parsed so far

    @abstractmethod
    def keys(self, operator: str, statics: Fields) -> Iterable[Key]:
        """Return the keys of an operator's records; problems with other values of `statics` may be omitted."""

    def families(self, operator: str, family: str) -> dict[str, str]:  # noqa: ARG002
        """Return, by GPU, the sizes of a family, one line per problem (`tuner.store.packed_problems`); `keys` omits
        these.
        """
        return {}

    @abstractmethod
    def records(self, operator: str | None = None, key: Key | None = None) -> list[StoredRecord]:
        """Return the records of an operator, or of one key, in order of preference."""

    def proofs(self, operator: str, gpu: str) -> dict[CheckedCode, bool]:  # noqa: ARG002
        """Return whether a device found compiled code of an operator correct, if the source contains verdicts."""
        return {}

    def _parsed(self, rows: Iterable[_Row]) -> list[StoredRecord]:
        records: list[StoredRecord] = []
        for row in rows:
            place = self._place(row.number)
            try:
                records.append(_stored(row, place))
            except StoreError as error:
                self.refused[place] = str(error)
        return sorted(records, key=lambda stored: stored.rank)

    def _place(self, number: int) -> str:
        return f"{self.name}, record {number}"


def _stored(row: _Row, place: str) -> StoredRecord:
    record = record_lines.from_line(row.line) if row.digest is None else record_lines.from_row(row.line, row.digest)
    stored = StoredRecord(record, place, decode(record.identity.problem), arch_of(record.identity.gpu), row.number)
    if row.key is not None and row.key != stored.key:
        raise StoreError("it is stored as the record of another problem")
    return stored


class ListedRecords(RecordSource):
    """Records in memory, in order of preference."""

    def __init__(self, records: Iterable[StoredRecord]) -> None:
        super().__init__("memory")
        self._records = list(records)

    def keys(self, operator: str, statics: Fields) -> Iterable[Key]:  # noqa: ARG002
        return dict.fromkeys(stored.key for stored in self._records if stored.key.operator == operator)

    def records(self, operator: str | None = None, key: Key | None = None) -> list[StoredRecord]:
        return [
            stored for stored in self._records if operator in (None, stored.key.operator) and key in (None, stored.key)
        ]


class TextRecords(RecordSource):
    """The lines of `.jsonl` files, kept as text by operator and parsed on demand."""

    def __init__(self, name: str, files: Iterable[Path]) -> None:
        super().__init__(name)
        self._take((file, number, line) for file in files for number, line in record_lines.lines(file))

    @classmethod
    def of_text(cls, path: Path, text: str) -> "TextRecords":
        """Return the records of a text read from `path`."""
        source = cls(str(path), [])
        source._take((path, number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
        return source

    def _take(self, listed: Iterable[tuple[Path, int, str]]) -> None:
        self._places: list[tuple[Path, int]] = []
        self._lines: dict[str, list[_Row]] = {}
        self._by_key: dict[str, dict[Key, list[_Row]]] = {}
        for file, line_number, line in listed:
            self._places.append((file, line_number))
            row = _Row(len(self._places) - 1, None, line)
            if operator := self._operator(row):
                self._lines.setdefault(operator, []).append(row)

    def _operator(self, row: _Row) -> str:
        if named := _OPERATOR.search(row.line):
            return named[1]
        parsed = self._parsed([row])  # not written by this program
        return parsed[0].key.operator if parsed else ""

    def _place(self, number: int) -> str:
        path, line_number = self._places[number]
        return f"{label(path)}, line {line_number}"

    def keys(self, operator: str, statics: Fields) -> Iterable[Key]:  # noqa: ARG002
        return self._keyed(operator).keys()

    def records(self, operator: str | None = None, key: Key | None = None) -> list[StoredRecord]:
        if key is not None:
            return self._parsed(self._keyed(key.operator).get(key, ()))
        wanted = self._lines if operator is None else (operator,)
        return self._parsed(row for name in wanted for row in self._lines.get(name, ()))

    def _keyed(self, operator: str) -> dict[Key, list[_Row]]:
        if operator not in self._by_key:
            keyed: dict[Key, list[_Row]] = {}
            for row in self._lines.get(operator, ()):
                if key := _key(row.line) or next((stored.key for stored in self._parsed([row])), None):
                    keyed.setdefault(key, []).append(row._replace(key=key))
            self._by_key[operator] = keyed
        return self._by_key[operator]


class ShippedRecords(RecordSource):
    """A folder of `.jsonl` files and of subfolders named after operators, whose files are read when the operator is
    first queried.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder, self.shipped = folder, True
        self._of_operator: dict[str, TextRecords] = {}

    def keys(self, operator: str, statics: Fields) -> Iterable[Key]:
        return self._of(operator).keys(operator, statics)

    def records(self, operator: str | None = None, key: Key | None = None) -> list[StoredRecord]:
        if key is not None or operator is not None:
            return self._of(key.operator if key else operator or "").records(operator, key)
        every = [TextRecords(self.name, sorted(self._folder.glob("**/*.jsonl")))]
        return [stored for source in every for stored in source.records()]

    def _of(self, operator: str) -> TextRecords:
        if operator not in self._of_operator:
            files = [*sorted(self._folder.glob("*.jsonl")), *sorted((self._folder / operator).glob("*.jsonl"))]
            source = TextRecords(self.name, files)
            source.refused = self.refused
            self._of_operator[operator] = source
        return self._of_operator[operator]


def _key(line: str) -> Key | None:
    """Return the key of a line's record without parsing the rest; None if only `record_lines.from_line` can decide."""
    if (subject := codec.subject_in(line)) is None:
        return None
    operator, problem, gpu = subject
    return Key(operator, encode(problem), gpu)


class DatabaseRecords(RecordSource):
    """The records of an SQLite file. Each call opens it, so that no connection is used in a forked child or another
    thread.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        with self._connection() as connection:
            _refuse_schema(connection)
            columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(records)")}
            self._packed = "family" in columns  # absent in older schemas
            if path.stat().st_size <= _SMALL:
                (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if said != "ok":
                    raise StoreError(f"{DAMAGED} ({said.splitlines()[-1]})")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with _READING, closing(_open(self._path)) as connection:
                yield connection
        except (*_UNREADABLE, OSError) as error:
            raise StoreError(_meaning(error)) from error

    def families(self, operator: str, family: str) -> dict[str, str]:
        if not self._packed:
            return {}
        query = "SELECT gpu, group_concat(sizes, char(10)) FROM records WHERE operator = ? AND family = ? GROUP BY gpu"
        with self._connection() as connection:
            return dict(connection.execute(query, (operator, family)))

    def keys(self, operator: str, statics: Fields) -> Iterable[Key]:
        if self._packed:
            return []
        texts = [f'"{name}":{encode(value)}' for name, value in statics.items() if not isinstance(value, float)]
        having = "".join(" AND instr(problem, ?)" for _ in texts)
        query = f"SELECT DISTINCT operator, problem, gpu FROM records WHERE operator = ?{having}"
        with self._connection() as connection:
            return [Key(*row) for row in connection.execute(query, (operator, *texts))]

    def records(
        self, operator: str | None = None, key: Key | None = None, *, gpu: str | None = None
    ) -> list[StoredRecord]:
        asked = key._asdict() if key else {"operator": operator, "gpu": gpu}
        where, values = _where(asked)
        with self._connection() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM records WHERE {where}", values)
            return self._parsed(map(_row, rows))

    def first(self, limit: int, operator: str | None, gpu: str | None) -> list[StoredRecord] | None:
        """Return the current records of the first operators, GPUs and problems, in this order; None if there are fewer
        than `limit`. Problems are grouped in an index, without reading their records.
        """
        where, values = _where({"operator": operator, "gpu": gpu})
        keys = "SELECT operator, problem, gpu FROM records"
        first = f"{keys} WHERE {where} GROUP BY operator, problem, gpu ORDER BY operator, gpu, problem LIMIT ?"
        current = (
            f"SELECT {_COLUMNS} FROM records WHERE operator = ? AND problem = ? AND gpu = ? "
            "ORDER BY evidence = 'predicted', id DESC"
        )
        with self._connection() as connection:
            subjects = connection.execute(first, (*values, limit)).fetchall()
            if len(subjects) < limit:
                return None
            of_subjects = (self._first_parsed(map(_row, connection.execute(current, subject))) for subject in subjects)
            return [stored for stored in of_subjects if stored]

    def _first_parsed(self, rows: Iterable[_Row]) -> StoredRecord | None:
        return next((stored for row in rows for stored in self._parsed([row])), None)

    def proofs(self, operator: str, gpu: str) -> dict[CheckedCode, bool]:
        """Return whether each code is correct, by its newest row. A database of an older schema has no proofs."""
        names = ", ".join(field.name for field in fields(CheckedCode))
        query = f"SELECT {names}, ok FROM proofs WHERE operator = ? AND gpu = ? ORDER BY id"
        try:
            with self._connection() as connection:
                return {CheckedCode(*code): bool(ok) for *code, ok in connection.execute(query, (operator, gpu))}
        except StoreError:
            return {}


def _where(asked: Mapping[str, str | None]) -> tuple[str, tuple[str, ...]]:
    """Return a condition on columns, and its values; None stands for all."""
    equal = {name: value for name, value in asked.items() if value is not None}
    return " AND ".join(f"{name} = ?" for name in equal) or "1", tuple(equal.values())


def _row(columns: Sequence[Any]) -> _Row:
    """Return the row in the values of `_COLUMNS`."""
    number, digest, line, *subject = columns
    return _Row(number, digest, line, Key(*subject))


def open_source(source: str | Path) -> RecordSource:
    """Raise StoreError, without the name of the source, if its records cannot be read."""
    if "://" in str(source):
        raise StoreError("a server is not read by applications: export its records to a .jsonl file and name that")
    try:
        path = Path(source).expanduser()
        if path == locations.SHIPPED:
            return ShippedRecords(path)
        if path.is_dir():
            return TextRecords(str(path), sorted(path.glob("*.jsonl")))
        path.stat()
        if path.suffix == bundle.SUFFIX:
            return TextRecords.of_text(path, bundle.Bundle.open(path).records())
        return TextRecords(str(path), [path]) if is_text(path) else DatabaseRecords(path)
    except FileNotFoundError as error:
        raise StoreError("there is no such file") from error
    except (OSError, RuntimeError) as error:  # ~ with an unknown home folder
        raise StoreError(getattr(error, "strerror", None) or str(error)) from error


def label(source: str | Path) -> str:
    """Return the name of a source for messages; of a URL, which may contain a password, only the scheme.

    Characters that are not printable are escaped: a file's name must not rewrite a terminal.
    """
    scheme, url, _ = str(source).partition("://")
    text = f"{scheme}://…" if url else str(source)
    return text if text.isprintable() else ascii(text)


def read(
    source: str | Path, operator: str | None = None, gpu: str | None = None
) -> tuple[list[StoredRecord], list[str]]:
    """Return the records of a source in order of preference, and a message for each line or row without a valid record.

    `operator` and `gpu` select records; None stands for all. Raises StoreError if the source cannot be read.
    """
    opened = open_source(source)
    if isinstance(opened, DatabaseRecords):
        records = opened.records(operator, gpu=gpu)
    else:
        records = [stored for stored in opened.records(operator) if gpu in (None, stored.key.gpu)]
    return records, _refused(opened)


def _refused(source: RecordSource) -> list[str]:
    return [f"{row}: {why}" for row, why in source.refused.items()]


def first(
    source: str | Path, limit: int, operator: str | None, gpu: str | None
) -> tuple[list[StoredRecord], list[str]] | None:
    """Return what `read` returns, for the current records of the first `limit` problems of an SQLite file only.

    Returns None if the file has fewer, or is text. Raises StoreError if the source cannot be read.
    """
    opened = open_source(source)
    records = opened.first(limit, operator, gpu) if isinstance(opened, DatabaseRecords) else None
    return None if records is None else (records, _refused(opened))


def races(source: str | Path) -> list[FinalRace]:
    """Return the final races of an SQLite file, oldest first; none for other sources and older schemas."""
    path = Path(source).expanduser()
    if "://" in str(source) or is_text(source) or not path.exists():
        return []
    try:
        with _READING, closing(_open(path)) as connection:
            refuse_code(connection.execute)
            return [
                codec.race_from(decode(text)) for (text,) in connection.execute("SELECT race FROM races ORDER BY id")
            ]
    except (
        StoreError,
        sqlite3.Error,
        KeyError,
        TypeError,
        ValueError,
    ):  # reported by the function that reads its records
        return []


def last_rows(path: Path) -> tuple[int, ...]:
    """Return the numbers of the last record and the last proof in an SQLite file. Raises StoreError if it has none."""
    try:
        with _READING, closing(_open(path)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            numbers = (
                connection.execute(f"SELECT max(id) FROM {table}").fetchone() for table in _SERVED if table in tables
            )
            return tuple(number or 0 for (number,) in numbers)
    except (*_UNREADABLE, OSError) as error:
        raise StoreError(_meaning(error)) from error


@cache
def arch_of(name: str) -> str:
    """Return the arch of the GPU that a record names; empty if it is unknown."""
    try:
        return gpu(name).arch.name
    except UsageError:
        return ""


def is_text(source: str | Path) -> bool:
    """Return whether a source contains records as text: a `.jsonl` file, or a folder of such files."""
    path = Path(source).expanduser()
    return path.suffix == ".jsonl" or path.is_dir()


@cache
def newest_schema(folder: Path = MIGRATIONS) -> str:
    """Return the version that the migrations in `folder` lead to; their files are versions/v<version>_<name>.py."""
    return max(path.name[1:].partition("_")[0] for path in (folder / "versions").glob("v*_*.py"))


def refuse_code(execute: Callable[[str], Iterable[Any]]) -> None:
    """Raise StoreError for an SQLite database that computes: a stranger's view need not end, and a trigger changes what
    is stored. `execute` runs a statement and returns its rows.
    """
    if computing := next((tuple(row) for statement in _COMPUTING for row in execute(statement)), None):
        raise StoreError(f"it has a {' '.join(computing)}, which no tuner database has: it is not used")


def _refuse_schema(connection: sqlite3.Connection) -> None:
    refuse_code(connection.execute)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if VERSION_TABLE not in tables:
        raise StoreError("it is not a tuner database" if tables else "it is empty")
    (version,) = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone() or ("",)
    if not str(version).isdigit() or int(version) > int(newest_schema()):
        known = f"this program knows up to {newest_schema()}"
        raise StoreError(f"it has schema version {version}, and {known}: update tuner, or name another database")


def has_log(path: Path) -> bool:
    """Return whether a database has commits in its write-ahead log."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _meaning(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_NOTADB"):
        return NOT_A_DATABASE
    if name.startswith("SQLITE_CANTOPEN"):
        return "it cannot be opened: get permission for the file and its folder"
    damaged = name.startswith("SQLITE_CORRUPT") or isinstance(error, UnicodeDecodeError)
    return f"{DAMAGED} ({error})" if damaged else str(error)


def _open(path: Path) -> sqlite3.Connection:
    """Open a read-only connection; in a folder where SQLite cannot create its log, one that needs no log.

    A database is opened by SQLite only: when a process closes any descriptor of a file, it loses all of its locks on
    that file, including those of a connection that writes (https://www.sqlite.org/howtocorrupt.html).
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if has_log(path):
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True)
    return connection
