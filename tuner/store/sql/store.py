"""The database of a tuner: it stores attempts and verdicts, promotes records, and looks both up."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table, func, select, update

from tuner.base.canonical_json import encode
from tuner.base.fields import Fields
from tuner.base.self_closing import Closing
from tuner.errors import StoreError
from tuner.results.attempt import Attempt
from tuner.results.final_race import FinalRace
from tuner.results.proof import Proof
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict
from tuner.store import record_lines
from tuner.store.misses import Missed
from tuner.store.read import DAMAGED, MIGRATIONS, newest_schema
from tuner.store.sql import claims, ledger, missed, rows
from tuner.store.sql.claims import Holder
from tuner.store.sql.database import Database, explained, locate, sync_log
from tuner.store.sql.dialect import insert_many, insert_new
from tuner.store.sql.integrity import damage, unreadable
from tuner.store.sql.ledger import Admission, Entry
from tuner.store.sql.migrate import migrate
from tuner.store.sql.rows import Facts, StoredAttempt, Study
from tuner.store.sql.schema import ATTEMPTS, DEVICES, PROOFS, RACES, RECORDS, STUDIES, VERDICTS
from tuner.store.sql.sorted_rows import SortedRows

_SMALL = 16 << 20  # bytes; a quick check of this many takes about 15 ms
_IMPORT_ORDER = ("operator", "problem", "gpu", "digest")
_AT_ONCE = 10_000  # ids per statement; SQLite's limit is 32,766
_STUDIES = select(*(column for column in STUDIES.c if column is not STUDIES.c.uuid)).order_by(STUDIES.c.id)
_FIRST = (RECORDS.c.evidence == "predicted", RECORDS.c.id.desc())  # the order of the records of one problem


class Store(Closing):
    """Attempts, verdicts, records, studies, and facts about devices.

    Rows are only added, except for claims, the ledger, and the end of a study. Each call is one transaction, which is
    complete or has no effect, even if the process is killed. A call that loses its connection is repeated and stores
    its rows once. Calls raise StoreError with advice if the database fails.
    """

    version: str  # of the schema

    def __init__(self, database: Database) -> None:
        self._database, self._place = database, database.place
        self._read, self._write = database.read, database.write

    @classmethod
    def open(cls, place: str | Path | None = None, *, patience_s: float = 30.0, migrations: Path = MIGRATIONS) -> Self:
        """Open `place`: a file, `:memory:` or a PostgreSQL URL; None is `TUNER_DB`, or else the user's own database.

        A file that does not exist is created. An older schema is migrated after a copy of the file was made; a file
        that cannot be written is opened read-only. A call waits up to `patience_s` for another process's lock, and for
        a server that restarts. Raises StoreError, or UsageError for a URL of another kind.
        """
        location = locate(place)
        with explained(location):
            store = cls(Database(location, patience_s))
            try:
                store._ready(migrations)
            except BaseException:
                store.close()
                raise
        return store

    def close(self) -> None:
        self._database.close()

    @property
    def place(self) -> str:
        """The location of this database, without a password."""
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
        """Add a search session and return its number; `problem` is canonical JSON, `budget` counts tries."""
        what = {"operator": operator, "problem": problem, "gpu": gpu, "command": command}
        how = {"seed": seed, "method": method, "effort": effort, "budget": budget}
        since = {"versions": encode(versions or {}), "started": rows.now()}
        return self._add(STUDIES, what | how | since)

    def end_study(self, study: int, why: str) -> None:
        """Store that a session has ended, and why. Raises StoreError if it is unknown or has ended before."""
        end = {"ended": rows.now(), "why": why}
        running = (STUDIES.c.id == study) & STUDIES.c.ended.is_(None)

        def work(connection: Connection) -> bool:
            done = connection.execute(update(STUDIES).where(running).values(**end)).rowcount
            by_this_call = select(STUDIES.c.id).where(STUDIES.c.id == study, *_equal(STUDIES, **end))
            return bool(done) or connection.execute(by_this_call).scalar() is not None

        if not self._write(work):
            raise StoreError(f"{self.place}: no study {study} is running")

    def studies(self, operator: str | None = None, problem: str | None = None, gpu: str | None = None) -> list[Study]:
        """Return search sessions, oldest first. An omitted name matches all."""
        asked = _equal(STUDIES, operator=operator, problem=problem, gpu=gpu)
        return [rows.study_of(row) for row in self._rows(_STUDIES.where(*asked))]

    def studies_of(self, numbers: Iterable[int]) -> list[Study]:
        """Return the search sessions with these numbers, oldest first."""
        wanted = sorted(set(numbers))
        parts = [wanted[first : first + _AT_ONCE] for first in range(0, len(wanted), _AT_ONCE)]
        return [rows.study_of(row) for part in parts for row in self._rows(_STUDIES.where(STUDIES.c.id.in_(part)))]

    def searched(self, operator: str, until: int | None = None) -> set[tuple[str, str]]:
        """Return (problem, GPU) of all search sessions of an operator, or of those up to the study `until`."""
        earlier = [] if until is None else [STUDIES.c.id <= until]
        pairs = select(STUDIES.c.problem, STUDIES.c.gpu).where(STUDIES.c.operator == operator, *earlier).distinct()
        return {(row["problem"], row["gpu"]) for row in self._rows(pairs)}

    def last_study(self) -> int:
        """Return the number of the newest search session; 0 if there is none."""
        (row,) = self._rows(select(func.coalesce(func.max(STUDIES.c.id), 0).label("id")))
        return int(row["id"])

    # ---- claims: see tuner.store.sql.claims ----

    def claim(self, scope: str, configs: Sequence[str], holder: Holder) -> set[str]:
        """Return the configs that `holder` may evaluate. It holds them until `release`, or until its process ends."""
        return self._write(lambda connection: claims.claim(connection, scope, configs, holder))

    def release(self, scope: str, configs: Iterable[str], holder: Holder) -> None:
        """Release claims on configs. Configs that `holder` does not hold are unaffected."""
        names = list(configs)
        self._write(lambda connection: claims.release(connection, scope, names, holder))

    def renew_claims(self, holder: Holder) -> None:
        """Extend all claims of `holder` by `claims.LEASE_S`."""
        self._write(lambda connection: claims.renew(connection, holder))

    def claimed(self, scope: str) -> dict[str, Holder]:
        """Return config → holder, for living holders."""
        return self._read(lambda connection: claims.claimed(connection, scope))

    # ---- the ledger: see tuner.store.sql.ledger ----

    def enter(self, scope: str, config: str, holder: Holder, uuid: str, most: int) -> Admission:
        """Enter a config into the ledger before it runs, unless it has died `most` times.

        The entry is on disk when this call returns, because the config may crash the machine.
        """
        admission = self._write(lambda connection: ledger.enter(connection, scope, config, holder, uuid, most))
        if self._place.path is not None:
            sync_log(self._place.path)
        return admission

    def leave(self, uuid: str) -> None:
        """Remove the entry of a config that has returned."""
        self._write(lambda connection: ledger.leave(connection, uuid))

    def leave_all(self, holder: Holder) -> None:
        """Remove all entries of a holder, including deaths."""
        self._write(lambda connection: ledger.leave_all(connection, holder))

    def note(self, uuid: str, text: str) -> None:
        """Store what the process of an entry is doing."""
        self._write(lambda connection: ledger.note(connection, uuid, text))

    def bury(self, uuid: str) -> None:
        """Store that the config of an entry crashed its process."""
        when = rows.now()
        self._write(lambda connection: ledger.bury(connection, uuid, when))

    def entries(self, scope: str, config: str) -> list[Entry]:
        """Return the ledger's entries of a config, oldest first."""
        return self._read(lambda connection: ledger.entries(connection, scope, config))

    def deaths(self, scope: str) -> Counter[str]:
        """Return how often each config of a scope has crashed its process."""
        return self._read(lambda connection: ledger.deaths(connection, scope))

    def forgive(self, scope: str) -> None:
        """Remove the deaths of a scope."""
        self._write(lambda connection: ledger.forgive(connection, scope))

    def release_process(self, holder: Holder) -> None:
        """Release the claims of a process that is known to have ended, on any machine."""
        self._write(lambda connection: ledger.release_process(connection, holder))

    # ---- attempts and verdicts ----

    def append(self, attempts: Iterable[Attempt], study: int | None = None) -> list[int]:
        """Store attempts, all or none; return their row numbers in order."""
        created = rows.now()
        new = {uuid4().hex: rows.attempt_row(attempt, study, created) for attempt in attempts}

        def work(connection: Connection) -> list[int]:
            if new:
                values = [row | {"uuid": uuid} for uuid, row in new.items()]
                connection.execute(insert_new(connection, ATTEMPTS, "uuid"), values)
            return _numbers(connection, ATTEMPTS, list(new))

        return self._write(work) if new else []

    def attempts(
        self,
        operator: str,
        problem: str | None = None,
        gpu: str | None = None,
        implementation: str | None = None,
        policy: str | None = None,
        after: int = 0,
    ) -> list[StoredAttempt]:
        """Return the attempts for an operator in rows after `after`, oldest first. An omitted name matches all."""
        asked = _equal(
            ATTEMPTS, operator=operator, problem=problem, gpu=gpu, implementation=implementation, policy=policy
        )
        newer = [ATTEMPTS.c.id > after] if after else []
        selected = select(ATTEMPTS).where(*asked, *newer).order_by(ATTEMPTS.c.id)
        return [rows.attempt_of(row) for row in self._rows(selected)]

    def last_attempt(self) -> int:
        """Return the row of the newest attempt at any problem; 0 if there is none."""
        (row,) = self._rows(select(func.coalesce(func.max(ATTEMPTS.c.id), 0).label("id")))
        return int(row["id"])

    def count_attempts(self, after: int = 0) -> int:
        """Return the number of attempts stored in rows after `after`."""
        (row,) = self._rows(select(func.count().label("count")).where(ATTEMPTS.c.id > after))
        return int(row["count"])

    def append_verdict(self, attempt: int, verdict: Verdict, code: str = "") -> int:
        """Store the verdict of an attempt by the operator's Python code with digest `code`.

        Raises StoreError for an unknown attempt.
        """
        return self._add(VERDICTS, rows.verdict_row(attempt, verdict, code))

    def verdicts(self, attempts: Sequence[int], code: str | None = None) -> dict[int, Verdict]:
        """Return the newest verdict of each attempt that has one; with `code`, only verdicts of that code."""
        parts = [attempts[first : first + _AT_ONCE] for first in range(0, len(attempts), _AT_ONCE)]
        asked = [select(VERDICTS).where(VERDICTS.c.attempt.in_(part)).order_by(VERDICTS.c.id) for part in parts]
        newest = {row["attempt"]: row for row in chain.from_iterable(map(self._rows, asked))}
        parsed = {attempt: rows.verdict_of(row) for attempt, row in newest.items()}
        return {attempt: verdict for attempt, (verdict, by) in parsed.items() if code is None or by == code}

    # ---- records ----

    def promote(self, record: TuningRecord, study: int | None = None) -> int:
        """Add a record and return its row. Equal records are stored once, even if several processes add them
        concurrently.

        Raises StoreError if its verdict is not ok, or if it lacks the value that its evidence requires.
        """
        return self._add(RECORDS, rows.record_row(record, study), "digest")

    def record(self, operator: str, problem: str, gpu: str) -> TuningRecord | None:
        """Return the current record: the newest measured one or, if none was measured, the newest predicted one.

        The newest is the one that was stored last, regardless of the clocks of machines.
        """
        return next(iter(self.all_records(operator, problem, gpu)), None)

    def records(
        self, operator: str | None = None, *, gpu: str | None = None, limit: int | None = None
    ) -> list[TuningRecord]:
        """Return the current record of each operator, GPU and problem, sorted by these. An omitted name matches all."""
        keys = (RECORDS.c.operator, RECORDS.c.gpu, RECORDS.c.problem)
        rank = func.row_number().over(partition_by=keys, order_by=_FIRST).label("rank")
        ranked = select(RECORDS.c.id, rank).where(*_equal(RECORDS, operator=operator, gpu=gpu)).subquery()
        newest = select(RECORDS).join(ranked, RECORDS.c.id == ranked.c.id).where(ranked.c.rank == 1)
        return [rows.record_of(row) for row in self._rows(newest.order_by(*keys).limit(limit))]

    def all_records(
        self, operator: str | None = None, problem: str | None = None, gpu: str | None = None
    ) -> list[TuningRecord]:
        """Return all records; of one problem, the preferred ones first."""
        asked = _equal(RECORDS, operator=operator, problem=problem, gpu=gpu)
        return [rows.record_of(row) for row in self._rows(select(RECORDS).where(*asked).order_by(*_FIRST))]

    def export_jsonl(self, path: Path, *, gpu: str | None = None) -> int:
        """Write the current records to `path`, sorted, one per line; return their number."""
        current = self.records(gpu=gpu)
        record_lines.write(path, current)
        return len(current)

    def import_jsonl(self, path: Path) -> int:
        """Add the records of a file, all or none; return the number of new ones. Raises StoreError with the invalid
        line.

        Checked rows are kept in a temporary file until the last line is checked: memory is bounded, and the database is
        locked only while rows are inserted.
        """
        # A fixed order prevents deadlocks between imports, and keeps rows of one problem together in the indices.
        with SortedRows(itemgetter(*map(rows.RECORD_COLUMNS.index, _IMPORT_ORDER))) as sorted_rows:
            sorted_rows.extend(_imported(path))
            return self._write(
                lambda connection: insert_many(connection, RECORDS, "digest", rows.RECORD_COLUMNS, sorted_rows)
            )

    # ---- final races ----

    def append_race(self, race: FinalRace) -> int:
        """Store a final race; return its row."""
        return self._add(RACES, rows.race_row(race))

    def races(self, operator: str, problem: str | None = None, gpu: str | None = None) -> list[FinalRace]:
        """Return the final races of an operator, oldest first. An omitted name matches all."""
        asked = _equal(RACES, operator=operator, problem=problem, gpu=gpu)
        return [rows.race_of(row) for row in self._rows(select(RACES).where(*asked).order_by(RACES.c.id))]

    # ---- proofs: verdicts of a device on compiled configs ----

    def append_proof(self, proof: Proof) -> int:
        """Store a device's verdict on compiled code; return its row."""
        return self._add(PROOFS, rows.proof_row(proof))

    def proofs(self, operator: str, gpu: str) -> list[Proof]:
        """Return the newest proof of each code of an operator on a GPU, oldest first."""
        asked = _equal(PROOFS, operator=operator, gpu=gpu)
        stored = [rows.proof_of(row) for row in self._rows(select(PROOFS).where(*asked).order_by(PROOFS.c.id))]
        return list({proof.code: proof for proof in stored}.values())

    # ---- facts about machines ----

    def add_device(self, name: str, facts: Fields) -> int:
        """Store facts about a device (driver, clocks, number of SMs, …); equal facts keep their row."""
        return self._add(DEVICES, rows.facts_row(name, facts), "digest")

    def devices(self) -> list[Facts]:
        return [rows.facts_of(row) for row in self._rows(select(DEVICES).order_by(DEVICES.c.id))]

    # ---- misses of applications: see tuner.store.misses ----

    def add_misses(self, misses: Sequence[Missed]) -> None:
        """Add calls to the stored misses. Raises StoreError if there are too many problems."""
        self._write(lambda connection: missed.add(connection, misses, rows.now()))

    def misses(self) -> tuple[list[Missed], list[str]]:
        """Return the misses, most frequent first, and a message for each invalid row."""
        return self._read(missed.read)

    # ---- the database itself ----

    def check(self) -> list[str]:
        """Return a message for each defect: of the file's structure or, if it is intact, of every row that cannot be
        read.
        """
        return self._read(lambda connection: damage(connection, "integrity_check") or unreadable(connection))

    def _ready(self, migrations: Path) -> None:
        migrate(self._database, migrations)
        self.version = newest_schema(migrations)
        path = self._place.path
        if path is None:
            return
        if self._place.writable:
            self._database.use_log()
        if path.stat().st_size <= _SMALL:
            self._refuse_damage()

    def _refuse_damage(self) -> None:
        if wrong := self._read(lambda connection: damage(connection, "quick_check")):
            raise StoreError(f"cannot use the database {self.place}: {DAMAGED} ({wrong[0]})")

    def _add(self, table: Table, row: dict[str, Any], unique: str = "uuid") -> int:
        """Add a row unless one with its `unique` value is stored; return the number of that row."""
        values = {"uuid": uuid4().hex, **row} if unique == "uuid" else row

        def work(connection: Connection) -> int:
            connection.execute(insert_new(connection, table, unique), values)
            return int(connection.execute(select(table.c.id).where(table.c[unique] == values[unique])).scalar_one())

        return self._write(work)

    def _rows(self, statement: Select[Any]) -> Sequence[RowMapping]:
        return self._read(lambda connection: connection.execute(statement).mappings().all())


def _imported(path: Path) -> Iterator[tuple[Any, ...]]:
    for number, line in record_lines.lines(path):
        try:
            yield rows.imported_row(line)
        except StoreError as error:
            raise StoreError(f"{path}, line {number}: {error}") from error


def _equal(table: Table, **asked: str | None) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name, value in asked.items() if value is not None]


def _numbers(connection: Connection, table: Table, uuids: Sequence[str]) -> list[int]:
    """Return the numbers of the rows with these `uuids`, in order."""
    numbers: dict[str, int] = {}
    for first in range(0, len(uuids), _AT_ONCE):
        part = table.c.uuid.in_(uuids[first : first + _AT_ONCE])
        stored = connection.execute(select(table.c.uuid, table.c.id).where(part))
        numbers.update(map(tuple, stored))
    return [numbers[uuid] for uuid in uuids]
