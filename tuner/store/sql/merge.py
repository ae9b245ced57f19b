"""Merging of databases: results of other people's searches are added to a database once."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Connection, MetaData, RowMapping, Table, event, func, insert, select, update

from tuner.base.canonical_json import encode
from tuner.errors import StoreError, UsageError
from tuner.store import locations, read, record_lines
from tuner.store.sql import rows
from tuner.store.sql.database import Database, Place, locate
from tuner.store.sql.dialect import insert_new
from tuner.store.sql.migrate import migrate, schema_version
from tuner.store.sql.schema import ATTEMPTS, CLAIMS, DEVICES, LEDGER, MISSES, PROOFS, RACES, RECORDS, STUDIES, VERDICTS
from tuner.store.sql.store import Store

_AT_ONCE = 5_000  # rows per transaction
_PATIENCE_S = 30.0
_Names = dict[int, str]  # row → the name of its insertion, in the source database


@dataclass(frozen=True, slots=True)
class _Merged:
    """A table whose rows are merged: the column that identifies a row, and the columns that refer to other tables."""

    table: Table
    name: str  # `digest` identifies the content, `uuid` the insertion
    check: Callable[[RowMapping], object]  # raises StoreError for a row with invalid values
    parent: tuple[str, Table] | None = None
    late: tuple[str, ...] = ()  # columns that are updated once after the insertion


MERGED = (  # parents first
    _Merged(STUDIES, "uuid", lambda row: rows.study_of(_without(row, "uuid")), late=("ended", "why")),
    _Merged(ATTEMPTS, "uuid", rows.attempt_of, ("study", STUDIES)),
    _Merged(VERDICTS, "uuid", rows.verdict_of, ("attempt", ATTEMPTS)),
    _Merged(RECORDS, "digest", lambda row: rows.record_row(rows.record_of(row), None), ("study", STUDIES)),
    _Merged(RACES, "uuid", rows.race_of),
    _Merged(PROOFS, "uuid", rows.proof_of),
    _Merged(DEVICES, "digest", rows.facts_of),
)
LEFT = (CLAIMS, LEDGER, MISSES)  # of processes that use one database


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a merge: added rows by table, and the problems that are now served by another record."""

    added: Mapping[str, int] = field(default_factory=dict)
    replaced: int = 0


def merge(into: str | Path, source: str | Path, *, migrations: Path = read.MIGRATIONS) -> Summary:
    """Add the rows of `source` to the database `into`, each row once; `into` is created if it does not exist.

    A source is a database, a server's URL, a `.jsonl` file or a folder of such files. It is not modified: an older
    schema is migrated in a copy. An interrupted merge is completed when it is repeated. Raises StoreError for a source
    that does not exist, that has a newer schema, or that contains an invalid row.
    """
    target = _database(into)
    location = locate(source)
    if location == target or (location.path and target.path and _same_file(location.path, target.path)):
        raise UsageError(f"{location.label} would be merged into itself: name another source")
    with Store.open(into, migrations=migrations) as store, closing(Database(target, _PATIENCE_S)) as writer:
        before = writer.read(_current)
        if "://" not in str(source) and read.is_text(source):
            added = _import_text(store, Path(source).expanduser())
        else:
            with _opened(location, migrations) as reader:
                added = _copy_rows(reader, writer)
        after = writer.read(_current)
    return Summary(added, sum(after[problem] != digest for problem, digest in before.items()))


def _database(place: str | Path) -> Place:
    location = locate(place)
    if location.label == locations.MEMORY or ("://" not in str(place) and read.is_text(place)):
        raise UsageError(f"{place}: records are merged into a database: name a file such as team.db, or a server")
    return location


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _import_text(store: Store, path: Path) -> dict[str, int]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    return {RECORDS.name: sum(store.import_jsonl(file) for file in files)}


@contextmanager
def _opened(location: Place, migrations: Path) -> Iterator[Database]:
    """Open a source database with the current schema: the database itself, or a migrated copy."""
    if location.label == locations.MEMORY or not location.exists:
        raise StoreError(f"{location.label}: there is no such database")
    with closing(Database(location, _PATIENCE_S)) as database:
        version = schema_version(database, migrations)
        if not version:
            raise StoreError(f"{location.label}: the database is empty")
        if version == read.newest_schema(migrations):
            yield database
            return
        with TemporaryDirectory(prefix="tuner-merge-") as folder, closing(_copied(database, Path(folder))) as copy:
            migrate(copy, migrations)
            yield copy


def _copied(database: Database, folder: Path) -> Database:
    """Copy all tables of a database into an SQLite file."""
    target = Path(folder) / "copy.db"
    if database.place.path is not None:
        with (
            closing(sqlite3.connect(f"{database.place.path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
        return Database(locate(target), _PATIENCE_S)
    tables = MetaData()
    event.listen(tables, "column_reflect", _drop_default)
    database.read(tables.reflect)
    copy_database = Database(locate(target), _PATIENCE_S)
    copy_database.write(tables.create_all)
    for table in tables.sorted_tables:
        if values := [dict(row) for row in database.read(partial(_all_rows, table))]:
            copy_database.write(partial(_insert_all, table, values))
    return copy_database


def _drop_default(_inspector: object, _table: object, column: dict[str, Any]) -> None:
    column["default"] = None  # without PostgreSQL's sequences and casts, since every value is copied


def _all_rows(table: Table, connection: Connection) -> list[RowMapping]:
    return list(connection.execute(select(table)).mappings())


def _insert_all(table: Table, values: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(insert(table), values)


def _copy_rows(reader: Database, writer: Database) -> dict[str, int]:
    """Insert the new rows; return their number by table."""
    for merged in MERGED:
        if merged.name == "uuid":
            writer.write(partial(_name_rows, merged))
    added: dict[str, int] = {}
    names: dict[Table, _Names] = {}
    last = reader.read(_last_rows)
    for merged in MERGED:
        wanted = reader.read(partial(_referred, merged.table))
        names[merged.table], added[merged.table.name] = {}, 0
        for batch in _batches(reader, merged, names, last[merged.table]):
            names[merged.table] |= {row["id"]: name for row, name in batch if row["id"] in wanted}
            work = partial(_insert, merged=merged, batch=batch, names=names)
            added[merged.table.name] += writer.write(work)
    return added


def _batches(
    reader: Database, merged: _Merged, names: Mapping[Table, _Names], last: int
) -> Iterator[list[tuple[RowMapping, str]]]:
    """Yield the rows of a table up to `last` with their names, in order, after checking each."""
    after, naming = 0, _Naming(merged, names)
    while batch := reader.read(partial(_rows_between, merged.table, after, last)):
        for row in batch:
            merged.check(row)
        yield [(row, naming.name(row)) for row in batch]
        after = batch[-1]["id"]


def _last_rows(connection: Connection) -> dict[Table, int]:
    """Return the last row of each table, children first, because a running search adds a row after the row it refers
    to.
    """
    last = ((merged.table, func.coalesce(func.max(merged.table.c.id), 0)) for merged in reversed(MERGED))
    return {table: int(connection.execute(select(number)).scalar_one()) for table, number in last}


def _rows_between(table: Table, after: int, last: int, connection: Connection) -> list[RowMapping]:
    statement = select(table).where(table.c.id > after, table.c.id <= last).order_by(table.c.id).limit(_AT_ONCE)
    return list(connection.execute(statement).mappings())


def _referred(table: Table, connection: Connection) -> set[int]:
    """Return the rows of a table to which rows of others refer."""
    columns = [merged.table.c[merged.parent[0]] for merged in MERGED if merged.parent and merged.parent[1] is table]
    return {number for column in columns for number in connection.execute(select(column).distinct()).scalars()}


def _insert(connection: Connection, merged: _Merged, batch: list[tuple[RowMapping, str]], names: Any) -> int:
    """Insert the rows that are not stored yet, and complete those that are; return the number of new rows."""
    numbers: dict[str, int] = {}
    if merged.parent:
        column, parent = merged.parent
        wanted = [names[parent][row[column]] for row, _ in batch if row[column] is not None]
        numbers = _numbers(connection, parent, wanted)
    values = []
    for row, name in batch:
        value = {**_without(row, "id"), merged.name: name}
        if merged.parent and row[column] is not None:
            value[column] = numbers[names[parent][row[column]]]
        values.append(value)
    statement = insert_new(connection, merged.table, merged.name).returning(merged.table.c.id)
    added = len(connection.execute(statement, values).all())
    for value in values if merged.late else ():
        _complete(connection, merged, value)
    return added


def _complete(connection: Connection, merged: _Merged, value: Mapping[str, Any]) -> None:
    """Update the columns that a session wrote since the last merge, during which it was running."""
    late = {name: value[name] for name in merged.late}
    missing = [merged.table.c[name].is_(None) for name in late]
    if None not in late.values():
        named = merged.table.c[merged.name] == value[merged.name]
        connection.execute(update(merged.table).where(named, *missing).values(**late))


def _numbers(connection: Connection, table: Table, uuids: Iterable[str]) -> dict[str, int]:
    wanted = sorted(set(uuids))
    numbers: dict[str, int] = {}
    for first in range(0, len(wanted), _AT_ONCE):
        part = table.c.uuid.in_(wanted[first : first + _AT_ONCE])
        numbers.update(map(tuple, connection.execute(select(table.c.uuid, table.c.id).where(part))))
    return numbers


class _Naming:
    """Return names for rows that were inserted before rows had names: a digest of the content, and a count of equal
    rows.

    Equal rows in two copies of an old database therefore have equal names.
    """

    def __init__(self, merged: _Merged, names: Mapping[Table, _Names]) -> None:
        self._merged, self._names = merged, names
        self._equal: Counter[str] = Counter()

    def name(self, row: RowMapping) -> str:
        if row[self._merged.name] is not None:
            return str(row[self._merged.name])
        content: dict[str, Any] = _without(row, "id", self._merged.name, *self._merged.late)
        if self._merged.parent:
            column, parent = self._merged.parent
            content[column] = self._names[parent].get(row[column], "")
        digest = record_lines.digest_of(f"{self._merged.table.name} {encode(content)}")
        self._equal[digest] += 1
        return f"{digest}-{self._equal[digest]}"


def _name_rows(merged: _Merged, connection: Connection) -> None:
    """Name each row of the target that an older program inserted."""
    table = merged.table
    nameless = connection.execute(select(table).where(table.c.uuid.is_(None)).order_by(table.c.id)).mappings().all()
    names: dict[Table, _Names] = {}
    if nameless and merged.parent:
        parent = merged.parent[1]
        names[parent] = {row.id: row.uuid for row in connection.execute(select(parent.c.id, parent.c.uuid))}
    naming = _Naming(merged, names)
    for row in nameless:
        connection.execute(update(table).where(table.c.id == row["id"]).values(uuid=naming.name(row)))


def _current(connection: Connection) -> dict[tuple[str, str, str], str]:
    """Return (operator, problem, GPU) → the digest of its current record."""
    columns = (RECORDS.c.operator, RECORDS.c.problem, RECORDS.c.gpu, RECORDS.c.digest)
    order = (RECORDS.c.evidence == "predicted", RECORDS.c.id.desc())
    current: dict[tuple[str, str, str], str] = {}
    for operator, problem, gpu, digest in connection.execute(select(*columns).order_by(*order)):
        current.setdefault((operator, problem, gpu), digest)
    return current


def _without(row: RowMapping, *names: str) -> Any:
    return {name: value for name, value in row.items() if name not in names}
