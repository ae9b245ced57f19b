"""Statements that both SQLite and PostgreSQL have, but that SQLAlchemy offers only per dialect."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

_BATCH = 1024  # rows per call of the driver
_CACHE_KIB = 16 << 10  # for pages of the indices, which SQLite's default of 2 MiB writes and reads several times


def insert_new(connection: Connection, table: Table, *unique: str) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that omits rows whose `unique` columns are already stored."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing(index_elements=[table.c[name] for name in unique])


def insert_many(
    connection: Connection, table: Table, unique: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> int:
    """Insert the rows that are not stored yet; return their number. `columns` are in the order of the table.

    The rows are passed to the driver as they are: SQLAlchemy's conversion takes as long as their insertion.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA cache_size = -{_CACHE_KIB}")
    compiled = insert_new(connection, table, unique).compile(dialect=connection.dialect, column_keys=list(columns))
    remaining, inserted = iter(rows), 0
    while batch := list(islice(remaining, _BATCH)):
        values: Any = batch if compiled.positional else [dict(zip(columns, row, strict=True)) for row in batch]
        inserted += connection.exec_driver_sql(str(compiled), values).rowcount
    return inserted
