"""Attempts, verdicts and records in SQLite or PostgreSQL; the only package that imports SQLAlchemy and Alembic."""

from tuner.store.rows import Facts, StoredAttempt, Study
from tuner.store.store import Store

__all__ = ["Facts", "Store", "StoredAttempt", "Study"]
