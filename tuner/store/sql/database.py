"""Access to a database: an SQLite file, memory, or a PostgreSQL server; transactions, and the meaning of errors."""

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool, StaticPool

from tuner.base.fork import ForkGuard, before_fork, renew_in_child
from tuner.errors import MachineError, StoreError, UsageError
from tuner.store import locations
from tuner.store.read import DAMAGED, NOT_A_DATABASE, has_log
from tuner.store.sql import lock_holders

T = TypeVar("T")
_LOCKED = "another process kept it locked for too long: wait for that process, or end it, and try again"
_PERMISSION = "get permission for the file and its folder, or name another with --db"
_NO_SUCH_ROW = "there is no such study or attempt: name one that is stored there"
_MEANINGS = {  # by SQLite's result code, the prefix of its extended codes: https://www.sqlite.org/rescode.html
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
_TOO_MANY = (
    "the server has no free connection: end processes that use it, raise its max_connections, or put a pooler such as "
    "PgBouncer in front of it"
)
_FULL = ("too many clients already", "remaining connection slots are reserved", "too many connections for")
_AWAY = ("starting up", "shutting down", "in recovery mode", *_FULL)  # of a server that refuses connections temporarily
_LOST = ("08", "57P01", "57P02", "57P03", "53300", "40001", "40P01")  # SQLSTATEs after which a transaction is repeated
_SHORT_S = 1.0  # SQLite's own wait, after which the holder of the lock is looked up
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_LOG = logging.getLogger("tuner.store")


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a database; `label` is its name in messages, without a password."""

    label: str
    path: Path | None = None  # of an SQLite file
    url: URL | None = None  # of a server; neither: memory

    @property
    def exists(self) -> bool:
        return self.path is None or self.path.exists()

    @property
    def writable(self) -> bool:
        """Return whether this user may write the file and its folder, in which SQLite keeps its log."""
        if self.path is None:
            return True
        parts = [self.path, self.path.parent] if self.path.exists() else [self.path.parent]
        effective = os.access in os.supports_effective_ids
        return all(os.access(part, os.W_OK, effective_ids=effective) for part in parts)


def locate(place: str | Path | None) -> Place:
    """Return the database that a user named: a path, `:memory:` or a PostgreSQL URL; None is the default one.

    Raises UsageError for a URL of another kind.
    """
    text = str(place) if place is not None else locations.database()
    if text == locations.MEMORY:
        return Place(text)
    if "://" not in text:
        path = Path(text).expanduser()
        return Place(str(path), path=path)
    url = _server_url(text)
    return Place(_redacted(url.set(drivername="postgresql")), url=url.set(drivername="postgresql+psycopg"))


def without_password(place: str) -> str:
    """Return a server's URL without the password, which each machine must obtain by its own means.

    Raises UsageError if it is no URL of a server.
    """
    url = locate(place).url
    if url is None:
        raise UsageError(f"{place} is no database that other machines reach: give postgresql://USER@HOST/NAME")
    query = {name: value for name, value in url.query.items() if "password" not in name.lower()}
    plain = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return plain.render_as_string(hide_password=False)


class Database:
    """Transactions on one database. Each is a function that is repeated after transient failures.

    These are a lost connection, a server that restarts or has too many clients, and a lock of another process. After
    `patience_s` of failures StoreError is raised. A transaction whose commit was not confirmed may have succeeded, so
    `work` must be idempotent.
    """

    def __init__(self, place: Place, patience_s: float) -> None:
        self.place, self._patience_s, self._reached = place, patience_s, False
        self.engine = _engine(place, patience_s)
        self._section = ForkGuard(f"used the database {place.label}")
        _databases.add(self)
        self._writer = self.engine.execution_options(begin="BEGIN IMMEDIATE")

    def read(self, work: Callable[[Connection], T]) -> T:
        return self._repeated(self.engine, work)

    def write(self, work: Callable[[Connection], T]) -> T:
        return self._repeated(self._writer, work)

    def use_log(self) -> None:
        """Have the file keep a write-ahead log, so that readers and a writer do not wait for each other."""
        with self._section, closing(self.engine.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA journal_mode=WAL")

    def close(self) -> None:
        with suppress(MachineError), self._section:  # a child that must not use the database closes nothing
            self.engine.dispose()

    def _repeated(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        deadline, pause = time.monotonic() + self._patience_s, _PAUSE_S
        while True:
            try:
                with self._section, explained(self.place), engine.begin() as connection:
                    self._reached = True
                    return work(connection)
            except StoreError as error:
                if not self._passes(error.__cause__) or time.monotonic() >= deadline:
                    raise
                if pause == _PAUSE_S:
                    _LOG.warning("%s; waiting up to %.0f s", error, self._patience_s)
            time.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _passes(self, error: BaseException | None) -> bool:
        """Return whether the transaction may succeed later. A server that has never answered may be a wrong address."""
        if isinstance(error, PoolTimeout):
            return True
        cause = error.orig if isinstance(error, DBAPIError) else error
        code = getattr(cause, "sqlite_errorname", "")
        if self.place.url is None or not isinstance(error, DBAPIError):
            return code.startswith("SQLITE_BUSY")
        state, text = getattr(cause, "sqlstate", None), str(cause)
        refused = state is None and type(cause).__name__ == "OperationalError" and self._reached
        return bool(error.connection_invalidated or refused or (state or "").startswith(_LOST)) or any(
            word in text for word in _AWAY
        )


_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()
_inherited: list[object] = []  # connections of the parent, which a child must neither use nor close


def _close_files() -> None:
    """Close the idle connections to files. SQLite records which locks a process holds on a file; a child would inherit
    that, but not the locks, and another process could then delete a log that the child still writes.
    """
    for database in list(_databases):
        if database.place.path:
            database.engine.dispose()


def _connect_anew() -> None:
    """Discard the connections in a child. A database in memory is kept: its connection is not shared with other
    processes.
    """
    for database in list(_databases):
        if database.place.path or database.place.url:
            _inherited.append(database.engine.pool)
            database.engine.dispose(close=False)


before_fork(_close_files)
renew_in_child(_connect_anew)


def _engine(place: Place, patience_s: float) -> Engine:
    """Create an engine. On SQLite, transactions begin with the statement given by `execution_options(begin=...)`.

    Raises StoreError for a file that cannot be a tuner database, before anything touches it.
    """
    if place.url is not None:
        return _server(place.url, patience_s)
    if place.path is not None:
        _prepare(place, place.path)

    def open_() -> sqlite3.Connection:
        connection = sqlite3.connect(
            _uri(place),
            uri=True,
            timeout=min(patience_s, _SHORT_S),
            isolation_level=None,
            check_same_thread=False,  # the pool gives a connection to one thread at a time
        )
        connection.execute(
            "PRAGMA synchronous=NORMAL"
        )  # with WAL, a killed process loses nothing, and a power failure only the last commits
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    # A database in memory has a single connection.
    engine = create_engine("sqlite://", creator=open_, poolclass=QueuePool if place.path else StaticPool)
    event.listen(engine, "begin", _begin)
    return engine


def sync_log(path: Path) -> None:
    """Flush the last commits of a file to disk, which `synchronous=NORMAL` leaves to the next checkpoint."""
    with suppress(OSError):  # no log: the commits are in the file itself
        file = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


@contextmanager
def explained(place: Place) -> Iterator[None]:
    """Convert a database's errors into StoreError, with the cause, the database and advice."""
    try:
        yield
    except (DBAPIError, PoolTimeout, sqlite3.Error, UnicodeDecodeError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreError(f"cannot use the database {place.label}: {_meaning(place, cause)}") from error


def _server_url(text: str) -> URL:
    accepted = f"give a file, {locations.MEMORY} or postgresql://USER@HOST/NAME"
    kind = text.partition("://")[0]
    if kind not in ("postgresql", "postgresql+psycopg"):
        raise UsageError(f"cannot use a {kind}:// URL: {accepted}")
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        raise UsageError(f"cannot make out the {kind}:// URL: {accepted}") from None  # the cause may contain a password


def _meaning(place: Place, cause: BaseException | None) -> str:
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""
    if code.startswith("53300") or any(words in str(cause) for words in _FULL):
        return _TOO_MANY
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) and place.path and (holders := lock_holders.of(place.path)):
        return f"{' and '.join(holders)} kept it locked for too long: wait for that process, or end it, and try again"
    for prefix, meaning in _MEANINGS.items():
        if code.startswith(prefix):
            return meaning
    if isinstance(cause, UnicodeDecodeError) or (isinstance(cause, sqlite3.OperationalError) and not code):
        return DAMAGED  # text that is not UTF-8, in a row or in an error message that quotes the schema
    text = str(cause).strip().partition("\n")[0]
    password = place.url.password if place.url is not None else None
    return text.replace(str(password), "***") if password else text


def _begin(connection: Connection) -> None:
    """Begin a transaction that reads before it writes by locking: SQLite refuses to wait for a lock later."""
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


def _server(url: URL, patience_s: float) -> Engine:
    try:
        # One connection per working thread; further idle ones are closed, since other processes need them.
        return create_engine(
            url, pool_size=1, max_overflow=15, connect_args={"connect_timeout": max(2, round(patience_s))}
        )
    except ModuleNotFoundError as error:
        raise MachineError("a PostgreSQL database needs psycopg: pip install 'kerntune[postgres]'") from error


def _redacted(url: URL) -> str:
    """Return the URL with the password replaced by stars, also if it is a query option."""
    query = {name: "***" if "password" in name.lower() else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def _uri(place: Place) -> str:
    if place.path is None:
        return "file::memory:"
    if place.writable:
        return f"{place.path.absolute().as_uri()}?mode=rwc"
    # SQLite's log has the last commits and cannot be read without its index; without a log there is nothing to lock.
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
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise StoreError(f"cannot use the database {path}: it is {kind}: name a file with --db")
