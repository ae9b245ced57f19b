"""The database of a tuner: append attempts and verdicts, promote records, look both up."""

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
from tuner.store.sql.database import Database, explained, locate, sync_log, use_log
from tuner.store.sql.dialect import insert_many, insert_new
from tuner.store.sql.integrity import damage, unreadable
from tuner.store.sql.ledger import Admission, Entry
from tuner.store.sql.migrate import migrate
from tuner.store.sql.rows import Facts, StoredAttempt, Study
from tuner.store.sql.schema import ATTEMPTS, DEVICES, PROOFS, RACES, RECORDS, STUDIES, VERDICTS

_SMALL = 16 << 20  # bytes; a quick check of as much takes about 15 ms
_AT_ONCE = 10_000  # ids in one statement; SQLite's limit is 32,766
_STUDIES = select(*(column for column in STUDIES.c if column is not STUDIES.c.uuid)).order_by(STUDIES.c.id)
_FIRST = (RECORDS.c.evidence == "predicted", RECORDS.c.id.desc())  # the order of records of one problem


class Store(Closing):
    """Attempts, verdicts, records, studies, and the facts about devices.

    Rows are only ever added, but for claims and the ledger; a study is written once more, when it ends. Every call is
    one transaction, done or not done, also when the process is killed. A call whose connection is lost is repeated and
    stores its rows once. Calls raise StoreError when the database fails, with what to do.
    """

    version: str  # of the schema

    def __init__(self, database: Database) -> None:
        self._database, self._place = database, database.place
        self._read, self._write = database.read, database.write

    @classmethod
    def open(cls, place: str | Path | None = None, *, patience_s: float = 30.0, migrations: Path = MIGRATIONS) -> Self:
        """Open `place`: a file, `:memory:` or a PostgreSQL URL; None is `TUNER_DB`, else the user's own database.

        A file that is missing is made, an older schema migrated after a copy of the file, one that cannot be written
        opened for reading. A call waits `patience_s` for another's lock, and for a server that restarts. Raises
        StoreError, or UsageError for a URL of another kind.
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
        return self._add(STUDIES, what | how | since)

    def end_study(self, study: int, why: str) -> None:
        """Note that a session ended, and why it stopped. Raises StoreError when it is unknown or ended before."""
        end = {"ended": rows.now(), "why": why}
        running = (STUDIES.c.id == study) & STUDIES.c.ended.is_(None)

        def work(connection: Connection) -> bool:
            done = connection.execute(update(STUDIES).where(running).values(**end)).rowcount
            by_this_call = select(STUDIES.c.id).where(STUDIES.c.id == study, *_equal(STUDIES, **end))
            return bool(done) or connection.execute(by_this_call).scalar() is not None

        if not self._write(work):
            raise StoreError(f"{self.place}: no study {study} is running")

    def studies(self, operator: str | None = None, problem: str | None = None, gpu: str | None = None) -> list[Study]:
        """Search sessions, oldest first; a name left out stands for all."""
        asked = _equal(STUDIES, operator=operator, problem=problem, gpu=gpu)
        return [rows.study_of(row) for row in self._rows(_STUDIES.where(*asked))]

    def studies_of(self, numbers: Iterable[int]) -> list[Study]:
        """The search sessions with these numbers, oldest first."""
        wanted = sorted(set(numbers))
        parts = [wanted[first : first + _AT_ONCE] for first in range(0, len(wanted), _AT_ONCE)]
        return [rows.study_of(row) for part in parts for row in self._rows(_STUDIES.where(STUDIES.c.id.in_(part)))]

    def searched(self, operator: str, until: int | None = None) -> set[tuple[str, str]]:
        """(problem, GPU) of every search session of an operator, or of those up to the study `until`."""
        earlier = [] if until is None else [STUDIES.c.id <= until]
        pairs = select(STUDIES.c.problem, STUDIES.c.gpu).where(STUDIES.c.operator == operator, *earlier).distinct()
        return {(row["problem"], row["gpu"]) for row in self._rows(pairs)}

    def last_study(self) -> int:
        """The number of the newest search session; 0 where there is none."""
        (row,) = self._rows(select(func.coalesce(func.max(STUDIES.c.id), 0).label("id")))
        return int(row["id"])

    # ---- claims: see tuner.store.sql.claims ----

    def claim(self, scope: str, configs: Sequence[str], holder: Holder) -> set[str]:
        """The configs that `holder` may evaluate: it holds them until `release`, or until its process ends."""
        return self._write(lambda connection: claims.claim(connection, scope, configs, holder))

    def release(self, scope: str, configs: Iterable[str], holder: Holder) -> None:
        """Give up claims on configs. What is not held by `holder` stays as it is."""
        names = list(configs)
        self._write(lambda connection: claims.release(connection, scope, names, holder))

    def renew_claims(self, holder: Holder) -> None:
        """Hold all that `holder` holds for another `claims.LEASE_S`."""
        self._write(lambda connection: claims.renew(connection, holder))

    def claimed(self, scope: str) -> dict[str, Holder]:
        """Config → its holder, for the holders that live."""
        return self._read(lambda connection: claims.claimed(connection, scope))

    # ---- the ledger: see tuner.store.sql.ledger ----

    def enter(self, scope: str, config: str, holder: Holder, uuid: str, most: int) -> Admission:
        """Enter a config into the ledger before it is run, unless it has died `most` times.

        The entry is on the disk when this returns: the config may take the machine down.
        """
        admission = self._write(lambda connection: ledger.enter(connection, scope, config, holder, uuid, most))
        if self._place.path is not None:
            sync_log(self._place.path)
        return admission

    def leave(self, uuid: str) -> None:
        """The config of an entry is back."""
        self._write(lambda connection: ledger.leave(connection, uuid))

    def leave_all(self, holder: Holder) -> None:
        """Every entry of a holder goes, deaths as well."""
        self._write(lambda connection: ledger.leave_all(connection, holder))

    def note(self, uuid: str, text: str) -> None:
        """Say what the process of an entry is at."""
        self._write(lambda connection: ledger.note(connection, uuid, text))

    def bury(self, uuid: str) -> None:
        """The config of an entry has taken its process down."""
        when = rows.now()
        self._write(lambda connection: ledger.bury(connection, uuid, when))

    def entries(self, scope: str, config: str) -> list[Entry]:
        """The ledger's entries of a config, oldest first."""
        return self._read(lambda connection: ledger.entries(connection, scope, config))

    def deaths(self, scope: str) -> Counter[str]:
        """How often each config of a scope has taken its process down."""
        return self._read(lambda connection: ledger.deaths(connection, scope))

    def forgive(self, scope: str) -> None:
        """Forget the deaths of a scope."""
        self._write(lambda connection: ledger.forgive(connection, scope))

    def release_process(self, holder: Holder) -> None:
        """Give up the claims of a process that is known to have ended, on whatever machine."""
        self._write(lambda connection: ledger.release_process(connection, holder))

    # ---- attempts and verdicts ----

    def append(self, attempts: Iterable[Attempt], study: int | None = None) -> list[int]:
        """Store attempts, all or none; their row numbers, in order."""
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
        """What was tried for an operator, oldest first, of the rows after `after`; a name left out stands for all."""
        asked = _equal(
            ATTEMPTS, operator=operator, problem=problem, gpu=gpu, implementation=implementation, policy=policy
        )
        newer = [ATTEMPTS.c.id > after] if after else []
        selected = select(ATTEMPTS).where(*asked, *newer).order_by(ATTEMPTS.c.id)
        return [rows.attempt_of(row) for row in self._rows(selected)]

    def last_attempt(self) -> int:
        """The row of the newest attempt at any problem; 0 where there is none."""
        (row,) = self._rows(select(func.coalesce(func.max(ATTEMPTS.c.id), 0).label("id")))
        return int(row["id"])

    def count_attempts(self, after: int = 0) -> int:
        """How many attempts are stored in rows after `after`."""
        (row,) = self._rows(select(func.count().label("count")).where(ATTEMPTS.c.id > after))
        return int(row["count"])

    def append_verdict(self, attempt: int, verdict: Verdict, code: str = "") -> int:
        """Add what checking an attempt showed, by the operator's Python of digest `code`.

        Raises StoreError for an unknown attempt.
        """
        return self._add(VERDICTS, rows.verdict_row(attempt, verdict, code))

    def verdicts(self, attempts: Sequence[int], code: str | None = None) -> dict[int, Verdict]:
        """The newest verdict of each of the attempts that have one; with `code`, only what that code found."""
        parts = [attempts[first : first + _AT_ONCE] for first in range(0, len(attempts), _AT_ONCE)]
        asked = [select(VERDICTS).where(VERDICTS.c.attempt.in_(part)).order_by(VERDICTS.c.id) for part in parts]
        newest = {row["attempt"]: row for row in chain.from_iterable(map(self._rows, asked))}
        parsed = {attempt: rows.verdict_of(row) for attempt, row in newest.items()}
        return {attempt: verdict for attempt, (verdict, by) in parsed.items() if code is None or by == code}

    # ---- records ----

    def promote(self, record: TuningRecord, study: int | None = None) -> int:
        """Add a record, also by several processes at once: equal ones are one row, whose number is returned.

        Raises StoreError when its verdict is not ok or it lacks the figure that its evidence claims.
        """
        return self._add(RECORDS, rows.record_row(record, study), "digest")

    def record(self, operator: str, problem: str, gpu: str) -> TuningRecord | None:
        """The current record: the newest measured one, or where nothing was measured the newest predicted one.

        The newest is the one that was stored last, whatever the clocks of machines say.
        """
        return next(iter(self.all_records(operator, problem, gpu)), None)

    def records(
        self, operator: str | None = None, *, gpu: str | None = None, limit: int | None = None
    ) -> list[TuningRecord]:
        """The current record of each operator, GPU and problem, sorted by these; a name left out stands for all."""
        keys = (RECORDS.c.operator, RECORDS.c.gpu, RECORDS.c.problem)
        rank = func.row_number().over(partition_by=keys, order_by=_FIRST).label("rank")
        ranked = select(RECORDS.c.id, rank).where(*_equal(RECORDS, operator=operator, gpu=gpu)).subquery()
        newest = select(RECORDS).join(ranked, RECORDS.c.id == ranked.c.id).where(ranked.c.rank == 1)
        return [rows.record_of(row) for row in self._rows(newest.order_by(*keys).limit(limit))]

    def all_records(
        self, operator: str | None = None, problem: str | None = None, gpu: str | None = None
    ) -> list[TuningRecord]:
        """Every record, those that stand before others of the same problem first."""
        asked = _equal(RECORDS, operator=operator, problem=problem, gpu=gpu)
        return [rows.record_of(row) for row in self._rows(select(RECORDS).where(*asked).order_by(*_FIRST))]

    def export_jsonl(self, path: Path, *, gpu: str | None = None) -> int:
        """Write the current records to `path`, sorted, one line each; how many there were."""
        current = self.records(gpu=gpu)
        record_lines.write(path, current)
        return len(current)

    def import_jsonl(self, path: Path) -> int:
        """Add the records of a file, all or none; how many were new. Raises StoreError with the line that is wrong."""
        new = {row["digest"]: row for row in _imported(path)}
        # In one order: two imports do not wait for each other. Rows of one problem stay together in the indices.
        values = sorted(new.values(), key=itemgetter("operator", "problem", "gpu", "digest"))
        return self._write(lambda connection: insert_many(connection, RECORDS, "digest", values))

    # ---- final races ----

    def append_race(self, race: FinalRace) -> int:
        """Store a final race; the number of its row."""
        return self._add(RACES, rows.race_row(race))

    def races(self, operator: str, problem: str | None = None, gpu: str | None = None) -> list[FinalRace]:
        """The final races of an operator, oldest first; a name left out stands for all."""
        asked = _equal(RACES, operator=operator, problem=problem, gpu=gpu)
        return [rows.race_of(row) for row in self._rows(select(RACES).where(*asked).order_by(RACES.c.id))]

    # ---- proofs: verdicts of a device on compiled configs ----

    def append_proof(self, proof: Proof) -> int:
        """Store what a device said of compiled code; the number of its row."""
        return self._add(PROOFS, rows.proof_row(proof))

    def proofs(self, operator: str, gpu: str) -> list[Proof]:
        """The newest proof of each code of an operator on a GPU, oldest first."""
        asked = _equal(PROOFS, operator=operator, gpu=gpu)
        stored = [rows.proof_of(row) for row in self._rows(select(PROOFS).where(*asked).order_by(PROOFS.c.id))]
        return list({proof.code: proof for proof in stored}.values())

    # ---- what the machines were ----

    def add_device(self, name: str, facts: Fields) -> int:
        """Note facts about a device (driver, clocks, SM count …); the same facts keep their row."""
        return self._add(DEVICES, rows.facts_row(name, facts), "digest")

    def devices(self) -> list[Facts]:
        return [rows.facts_of(row) for row in self._rows(select(DEVICES).order_by(DEVICES.c.id))]

    # ---- misses of applications: see tuner.store.misses ----

    def add_misses(self, misses: Sequence[Missed]) -> None:
        """Add the calls of misses to those that are stored. Raises StoreError where there are too many problems."""
        self._write(lambda connection: missed.add(connection, misses, rows.now()))

    def misses(self) -> tuple[list[Missed], list[str]]:
        """The misses, the most frequent first, and a sentence for each row that is none."""
        return self._read(missed.read)

    # ---- the database itself ----

    def check(self) -> list[str]:
        """What is wrong, a sentence each: the file's structure, or else every row that cannot be read."""
        return self._read(lambda connection: damage(connection, "integrity_check") or unreadable(connection))

    def _ready(self, migrations: Path) -> None:
        migrate(self._database, migrations)
        self.version = newest_schema(migrations)
        path = self._place.path
        if path is None:
            return
        if self._place.writable:
            use_log(self._database.engine)
        if path.stat().st_size <= _SMALL:
            self._refuse_damage()

    def _refuse_damage(self) -> None:
        if wrong := self._read(lambda connection: damage(connection, "quick_check")):
            raise StoreError(f"cannot use the database {self.place}: {DAMAGED} ({wrong[0]})")

    def _add(self, table: Table, row: dict[str, Any], unique: str = "uuid") -> int:
        """Add a row unless one with its `unique` value is stored; the number of the one that is."""
        values = {"uuid": uuid4().hex, **row} if unique == "uuid" else row

        def work(connection: Connection) -> int:
            connection.execute(insert_new(connection, table, unique), values)
            return int(connection.execute(select(table.c.id).where(table.c[unique] == values[unique])).scalar_one())

        return self._write(work)

    def _rows(self, statement: Select[Any]) -> Sequence[RowMapping]:
        return self._read(lambda connection: connection.execute(statement).mappings().all())


def _imported(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in record_lines.lines(path):
        try:
            yield rows.imported_row(line)
        except StoreError as error:
            raise StoreError(f"{path}, line {number}: {error}") from error


def _equal(table: Table, **asked: str | None) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name, value in asked.items() if value is not None]


def _numbers(connection: Connection, table: Table, uuids: Sequence[str]) -> list[int]:
    """The numbers of rows, in the order of `uuids`."""
    numbers: dict[str, int] = {}
    for first in range(0, len(uuids), _AT_ONCE):
        part = table.c.uuid.in_(uuids[first : first + _AT_ONCE])
        stored = connection.execute(select(table.c.uuid, table.c.id).where(part))
        numbers.update(map(tuple, stored))
    return [numbers[uuid] for uuid in uuids]
