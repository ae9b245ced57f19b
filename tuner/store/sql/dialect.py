"""Statements that SQLite and PostgreSQL both have, and SQLAlchemy only under either's name."""

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(connection: Connection, table: Table, *unique: str) -> postgresql.Insert | sqlite.Insert:
    """INSERT that leaves rows out whose `unique` columns are stored already."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing(index_elements=[table.c[name] for name in unique])
