"""The database of a tuner: append attempts and verdicts, promote records, look both up."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, Select, Table, func, insert, select, update

from tuner.base.canonical import encode
from tuner.base.closing import Closing
from tuner.base.fields import Fields
from tuner.errors import StoreError
from tuner.results.attempt import Attempt
from tuner.results.final_race import FinalRace
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict
from tuner.store import lines
from tuner.store.read import DAMAGED, MIGRATIONS, newest_schema
from tuner.store.sql import rows
from tuner.store.sql.database import Place, connect, explained, locate, use_log
from tuner.store.sql.integrity import damage, unreadable
from tuner.store.sql.migrate import migrate
from tuner.store.sql.rows import Facts, StoredAttempt, Study
from tuner.store.sql.schema import ATTEMPTS, DEVICES, RACES, RECORDS, STUDIES, VERDICTS

_SMALL = 16 << 20  # bytes; a quick check of as much takes about 15 ms
_AT_ONCE = 10_000  # ids in one question; SQLite's limit is 32,766


class Store(Closing):
    """Attempts, verdicts, records, studies, and the facts about devices.

    Rows are only ever added; a study is written once more, when it ends. Every call is one transaction: done or not
    done, also when the process is killed. Calls raise StoreError when the database fails, with what to do.
    """

    version: str  # of the schema

    def __init__(self, engine: Engine, place: Place) -> None:
        self._reader = engine.execution_options(begin="BEGIN")
        self._writer = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._place = place

    @classmethod
    def open(cls, place: str | Path | None = None, *, patience_s: float = 30.0, migrations: Path = MIGRATIONS) -> Self:
        """Open `place`: a file, `:memory:` or a PostgreSQL URL; None is `TUNER_DB`, else the user's own database.

        A file that is missing is made, an older schema migrated after a copy of the file, one that cannot be written
        opened for reading. A writer waits `patience_s` for another's lock. Raises StoreError, or UsageError for a URL
        of another kind.
        """
        found = locate(place)
        with explained(found):
            store = cls(connect(found, patience_s), found)
            try:
                store._ready(migrations)
            except BaseException:
                store.close()
                raise
        return store

    def close(self) -> None:
        self._reader.dispose()

    @property
    def place(self) -> str:
        """Where this database is, without a password."""
        return self._place.label

    @property
    def writable(self) -> bool:
        return self._place.writable

    # ---- search sessions ----

    def begin_study(
        self,
        *,
        operator: str,
        problem: str,
        gpu: str,
        command: str,
        seed: int,
        method: str,
        effort: str,
        budget: int,
        versions: Fields | None = None,
    ) -> int:
        """The number of a new search session; `problem` is canonical JSON, `budget` counts tries."""
        what = {"operator": operator, "problem": problem, "gpu": gpu, "command": command}
        how = {"seed": seed, "method": method, "effort": effort, "budget": budget}
        since = {"versions": encode(versions or {}), "started": rows.now()}
        with self._write() as connection:
            return _added(connection, STUDIES, what | how | since)

    def end_study(self, study: int, why: str) -> None:
        """Note that a session ended, and why it stopped. Raises StoreError when it is unknown or ended before."""
        running = (STUDIES.c.id == study) & STUDIES.c.ended.is_(None)
        with self._write() as connection:
            ended = connection.execute(update(STUDIES).where(running).values(ended=rows.now(), why=why)).rowcount
        if not ended:
            raise StoreError(f"{self.place}: no study {study} is running")

    def studies(self) -> list[Study]:
        """Every search session, oldest first."""
        return [rows.study_of(row) for row in self._rows(select(STUDIES).order_by(STUDIES.c.id))]

    # ---- attempts and verdicts ----

    def append(self, attempts: Iterable[Attempt], study: int | None = None) -> list[int]:
        """Store attempts, all or none; their row numbers, in order."""
        created = rows.now()
        new = [rows.attempt_row(attempt, study, created) for attempt in attempts]
        if not new:
            return []
        statement = insert(ATTEMPTS).returning(ATTEMPTS.c.id, sort_by_parameter_order=True)
        with self._write() as connection:
            return list(connection.execute(statement, new).scalars())

    def attempts(
        self,
        operator: str,
        problem: str | None = None,
        gpu: str | None = None,
        implementation: str | None = None,
        policy: str | None = None,
    ) -> list[StoredAttempt]:
        """What was tried for an operator, oldest first; a name left out stands for all."""
        asked = _equal(
            ATTEMPTS, operator=operator, problem=problem, gpu=gpu, implementation=implementation, policy=policy
        )
        found = self._rows(select(ATTEMPTS).where(*asked).order_by(ATTEMPTS.c.id))
        return [rows.attempt_of(row) for row in found]

    def append_verdict(self, attempt: int, verdict: Verdict, code: str = "") -> int:
        """Add what checking an attempt showed, by the operator's Python of digest `code`.

        Raises StoreError for an unknown attempt.
        """
        with self._write() as connection:
            return _added(connection, VERDICTS, rows.verdict_row(attempt, verdict, code))

    def verdicts(self, attempts: Sequence[int], code: str | None = None) -> dict[int, Verdict]:
        """The newest verdict of each of the attempts that have one; with `code`, only what that code found."""
        parts = [attempts[first : first + _AT_ONCE] for first in range(0, len(attempts), _AT_ONCE)]
        asked = [select(VERDICTS).where(VERDICTS.c.attempt.in_(part)).order_by(VERDICTS.c.id) for part in parts]
        newest = {row["attempt"]: row for row in chain.from_iterable(map(self._rows, asked))}
        found = {attempt: rows.verdict_of(row) for attempt, row in newest.items()}
        return {attempt: verdict for attempt, (verdict, by) in found.items() if code is None or by == code}

    # ---- records ----

    def promote(self, record: TuningRecord, study: int | None = None) -> int:
        """Add a record; one that is stored already keeps its row, whose number is returned.

        Raises StoreError when its verdict is not ok or it lacks the figure that its evidence claims.
        """
        row = rows.record_row(record, study)
        with self._write() as connection:
            return _stored(connection, row) or _added(connection, RECORDS, row)

    def record(self, operator: str, problem: str, gpu: str) -> TuningRecord | None:
        """The current record: the newest measured one, or where nothing was measured the newest predicted one."""
        return next(iter(self.all_records(operator, problem, gpu)), None)

    def records(self, operator: str | None = None, *, gpu: str | None = None) -> list[TuningRecord]:
        """The current record of each operator, problem and GPU; a name left out stands for all."""
        return lines.current(self.all_records(operator, gpu=gpu))

    def all_records(
        self, operator: str | None = None, problem: str | None = None, gpu: str | None = None
    ) -> list[TuningRecord]:
        """Every record, those that stand before others of the same problem first."""
        asked = _equal(RECORDS, operator=operator, problem=problem, gpu=gpu)
        order = (RECORDS.c.evidence == "predicted", RECORDS.c.created.desc(), RECORDS.c.id.desc())
        return [rows.record_of(row) for row in self._rows(select(RECORDS).where(*asked).order_by(*order))]

    def export_jsonl(self, path: Path, *, gpu: str | None = None) -> int:
        """Write the current records to `path`, sorted, one line each; how many there were."""
        found = self.records(gpu=gpu)
        lines.write(path, found)
        return len(found)

    def import_jsonl(self, path: Path) -> int:
        """Add the records of a file, all or none; how many were new. Raises StoreError with the line that is wrong."""
        new = {row["digest"]: row for row in (rows.record_row(record, None) for record in lines.read(path))}
        with self._write() as connection:
            missing = [row for row in new.values() if not _stored(connection, row)]
            if missing:
                connection.execute(insert(RECORDS), missing)
        return len(missing)

    # ---- final races ----

    def append_race(self, race: FinalRace) -> int:
        """Store a final race; the number of its row."""
        with self._write() as connection:
            return _added(connection, RACES, rows.race_row(race))

    def races(self, operator: str, problem: str | None = None, gpu: str | None = None) -> list[FinalRace]:
        """The final races of an operator, oldest first; a name left out stands for all."""
        asked = _equal(RACES, operator=operator, problem=problem, gpu=gpu)
        return [rows.race_of(row) for row in self._rows(select(RACES).where(*asked).order_by(RACES.c.id))]

    # ---- what the machines were ----

    def add_device(self, name: str, facts: Fields) -> int:
        """Note facts about a device (driver, clocks, SM count …); the same facts keep their row."""
        row = {"name": name, "facts": encode(facts)}
        known = select(func.max(DEVICES.c.id)).where(*_equal(DEVICES, **row))
        with self._write() as connection:
            return connection.execute(known).scalar() or _added(connection, DEVICES, row | {"created": rows.now()})

    def devices(self) -> list[Facts]:
        return [rows.facts_of(row) for row in self._rows(select(DEVICES).order_by(DEVICES.c.id))]

    # ---- the database itself ----

    def check(self) -> list[str]:
        """What is wrong, a sentence each: the file's structure, or else every row that cannot be read."""
        with self._read() as connection:
            return damage(connection, "integrity_check") or unreadable(connection)

    def _ready(self, migrations: Path) -> None:
        migrate(self._reader, self._writer, self._place, migrations)
        self.version = newest_schema(migrations)
        path = self._place.path
        if path is None:
            return
        if self._place.writable:
            use_log(self._reader)
        if path.stat().st_size <= _SMALL:
            self._refuse_damage()

    def _refuse_damage(self) -> None:
        with self._read() as connection:
            found = damage(connection, "quick_check")
        if found:
            raise StoreError(f"cannot use the database {self.place}: {DAMAGED} ({found[0]})")

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with explained(self._place), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with explained(self._place), self._writer.begin() as connection:
            yield connection

    def _rows(self, statement: Select[Any]) -> Sequence[RowMapping]:
        with self._read() as connection:
            return connection.execute(statement).mappings().all()


def _equal(table: Table, **asked: str | None) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name, value in asked.items() if value is not None]


def _stored(connection: Connection, row: dict[str, Any]) -> int | None:
    found: int | None = connection.execute(select(RECORDS.c.id).where(RECORDS.c.digest == row["digest"])).scalar()
    return found


def _added(connection: Connection, table: Table, row: dict[str, Any]) -> int:
    return int(connection.execute(insert(table).returning(table.c.id), row).scalar_one())
