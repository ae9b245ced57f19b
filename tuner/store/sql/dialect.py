"""Statements that both SQLite and PostgreSQL have, but that SQLAlchemy offers only per dialect."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(connection: Connection, table: Table, *unique: str) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that omits rows whose `unique` columns are already stored."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing(index_elements=[table.c[name] for name in unique])


def insert_many(connection: Connection, table: Table, unique: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows that are not stored yet; return their number. The rows differ only in their values.

    The rows are passed to the driver as they are: SQLAlchemy's conversion takes as long as their insertion.
    """
    if not rows:
        return 0
    compiled = insert_new(connection, table, unique).compile(dialect=connection.dialect, column_keys=list(rows[0]))
    values: Any = list(rows)
    if compiled.positional:
        order = itemgetter(*(compiled.positiontup or ()))
        values = [order(row) for row in rows]
    return connection.exec_driver_sql(str(compiled), values).rowcount
