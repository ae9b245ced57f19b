"""Attempts, verdicts and records in SQLite or PostgreSQL; the only package that imports SQLAlchemy and Alembic."""

from tuner.store.sql.claims import Holder
from tuner.store.sql.database import locate, without_password
from tuner.store.sql.ledger import Admission
from tuner.store.sql.rows import Facts, StoredAttempt, Study
from tuner.store.sql.store import Store

__all__ = ["Admission", "Facts", "Holder", "Store", "StoredAttempt", "Study", "locate", "without_password"]
