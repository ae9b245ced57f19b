"""Statements that SQLite and PostgreSQL both have, and SQLAlchemy only under either's name."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(connection: Connection, table: Table, *unique: str) -> postgresql.Insert | sqlite.Insert:
    """INSERT that leaves rows out whose `unique` columns are stored already."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing(index_elements=[table.c[name] for name in unique])


def insert_many(connection: Connection, table: Table, unique: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert rows with equal columns but for those that are stored already; how many were new.

    The rows go to the driver as they are: SQLAlchemy's conversion of each takes as long as its insertion.
    """
    if not rows:
        return 0
    compiled = insert_new(connection, table, unique).compile(dialect=connection.dialect, column_keys=list(rows[0]))
    values: Any = list(rows)
    if compiled.positional:
        order = itemgetter(*(compiled.positiontup or ()))
        values = [order(row) for row in rows]
    return connection.exec_driver_sql(str(compiled), values).rowcount
