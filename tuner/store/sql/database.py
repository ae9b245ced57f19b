"""Opening a database: a SQLite file, memory, or a PostgreSQL server; and what its errors mean to a user."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool

from tuner.errors import MachineError, StoreError, UsageError
from tuner.store import places
from tuner.store.read import DAMAGED, NOT_A_DATABASE, has_log, look_at_header

_LOCKED = "another process kept it locked for too long: wait for that process, or end it, and try again"
_PERMISSION = "get permission for the file and its folder, or name another with --db"
_NO_SUCH_ROW = "there is no such study or attempt: name one that is stored there"
_MEANINGS = {  # by SQLite's result code, whose extended forms begin with it: https://www.sqlite.org/rescode.html
    "SQLITE_NOTADB": NOT_A_DATABASE,
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_FULL": "the disk is full: free some space; all that was stored before is kept",
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_READONLY": f"it cannot be written: {_PERMISSION}",
    "SQLITE_CANTOPEN": f"it cannot be opened: {_PERMISSION}",
    "SQLITE_IOERR": "the disk reported an error: check its health and space",
    "SQLITE_PERM": f"access was denied: {_PERMISSION}",
    "SQLITE_PROTOCOL": "its locks do not work there: put it on a local disk",
    "SQLITE_CONSTRAINT_FOREIGNKEY": _NO_SUCH_ROW,
    "23503": _NO_SUCH_ROW,  # PostgreSQL's foreign_key_violation
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a database is; `label` is what messages may show of it: no password."""

    label: str
    path: Path | None = None  # of a SQLite file
    url: URL | None = None  # of a server; neither: memory

    @property
    def exists(self) -> bool:
        return self.path is None or self.path.exists()

    @property
    def writable(self) -> bool:
        """Whether this user may write the file, and beside it, where SQLite keeps its log."""
        if self.path is None:
            return True
        parts = [self.path, self.path.parent] if self.path.exists() else [self.path.parent]
        effective = os.access in os.supports_effective_ids
        return all(os.access(part, os.W_OK, effective_ids=effective) for part in parts)


def locate(place: str | Path | None) -> Place:
    """The database that a user named: a path, `:memory:` or a PostgreSQL URL; None is the default one.

    Raises UsageError for a URL of another kind.
    """
    text = str(place) if place is not None else places.database()
    if text == places.MEMORY:
        return Place(text)
    if "://" not in text:
        path = Path(text).expanduser()
        return Place(str(path), path=path)
    url = _server_url(text)
    return Place(_redacted(url), url=url.set(drivername="postgresql+psycopg"))


def connect(place: Place, patience_s: float) -> Engine:
    """An engine whose transactions begin the way `execution_options(begin=...)` says (SQLite only).

    Raises StoreError for a file that cannot be a tuner database, before anything touches it.
    """
    if place.url is not None:
        return _server(place.url, patience_s)
    if place.path is not None:
        _prepare(place, place.path)

    def open_() -> sqlite3.Connection:
        connection = sqlite3.connect(_uri(place), uri=True, timeout=patience_s, isolation_level=None)
        connection.execute("PRAGMA synchronous=NORMAL")  # with WAL: a kill loses nothing, a power cut the last commits
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    # One connection is all that memory has.
    engine = create_engine("sqlite://", creator=open_, poolclass=QueuePool if place.path else StaticPool)
    event.listen(engine, "begin", _begin)
    return engine


def use_log(engine: Engine) -> None:
    """Have the file keep a write-ahead log, so that readers and a writer do not wait for each other."""
    with closing(engine.raw_connection()) as connection:
        connection.cursor().execute("PRAGMA journal_mode=WAL")


@contextmanager
def explained(place: Place) -> Iterator[None]:
    """Turn a database's errors into StoreError: what, where, and what to do."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreError(f"cannot use the database {place.label}: {_meaning(place, cause)}") from error


def _server_url(text: str) -> URL:
    accepted = f"give a file, {places.MEMORY} or postgresql://USER@HOST/NAME"
    kind = text.partition("://")[0]
    if kind != "postgresql":
        raise UsageError(f"cannot use a {kind}:// URL: {accepted}")
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        raise UsageError(f"cannot make out the {kind}:// URL: {accepted}") from None  # the cause may show a password


def _meaning(place: Place, cause: BaseException | None) -> str:
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""
    for prefix, meaning in _MEANINGS.items():
        if code.startswith(prefix):
            return meaning
    if isinstance(cause, sqlite3.OperationalError) and not code:  # Python's own: text that is not UTF-8
        return DAMAGED
    text = str(cause).strip().partition("\n")[0]
    password = place.url.password if place.url is not None else None
    return text.replace(str(password), "***") if password else text


def _begin(connection: Connection) -> None:
    """A transaction that reads before it writes must lock first: waiting for a lock later is refused, not served."""
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


def _server(url: URL, patience_s: float) -> Engine:
    try:
        return create_engine(url, connect_args={"connect_timeout": max(1, round(patience_s))})
    except ModuleNotFoundError as error:
        raise MachineError("a PostgreSQL database needs psycopg: pip install 'psycopg[binary]'") from error


def _redacted(url: URL) -> str:
    """The URL with stars for the password, also where it is spelled as an option."""
    query = {name: "***" if "password" in name.lower() else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def _uri(place: Place) -> str:
    if place.path is None:
        return "file::memory:"
    if place.writable:
        return f"{place.path.absolute().as_uri()}?mode=rwc"
    # SQLite's log holds the last commits, and cannot be read without its index; without a log there is nothing to lock.
    return f"{place.path.absolute().as_uri()}?{'mode=ro' if has_log(place.path) else 'mode=ro&immutable=1'}"


def _prepare(place: Place, path: Path) -> None:
    try:
        _make_folder(path.parent)
        if path.exists():
            _look_at(path)
    except OSError as error:
        raise StoreError(f"cannot use the database {path}: {error.strerror}: name another with --db") from error
    if not place.exists and not place.writable:
        raise StoreError(f"cannot create the database {path}: {path.parent} is not writable: name another with --db")


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True)


def _look_at(path: Path) -> None:
    """Refuse what is plainly no database, or only a part of one."""
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise StoreError(f"cannot use the database {path}: it is {kind}: name a file with --db")
    try:
        look_at_header(path)
    except StoreError as error:
        raise StoreError(f"cannot use the database {path}: {error}") from error
