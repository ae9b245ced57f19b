"""`tuner show`: the records."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.base.canonical_json import decode
from tuner.base.fields import formatted
from tuner.cli.output import DbOption, JsonOption, emit_json, say, table
from tuner.errors import StoreError, TunerError, UsageError
from tuner.results.attempt import Evidence, Identity
from tuner.results.codec import to_data
from tuner.results.final_race import FinalRace
from tuner.results.record import TuningRecord
from tuner.store import locations, read, record_lines, signing


def show(
    operator: Annotated[str | None, typer.Argument(metavar="OPERATOR", help="only this operator's records")] = None,
    gpu: Annotated[str | None, typer.Option(help="only records of this GPU")] = None,
    db: DbOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write them as lines of a .jsonl file, which TUNER_DB may name")
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="sign what --out writes, with a private ed25519 key")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="most records in the table; --json and --out have all")
    ] = 100,
    as_json: JsonOption = False,
) -> None:
    """List the records: the best config known for each problem and GPU."""
    if out is not None and out.suffix != ".jsonl":
        raise UsageError(f"--out {out}: records are read from files named ….jsonl")
    if sign is not None and out is None:
        raise UsageError("--sign KEY signs the records that --out writes: give --out FILE.jsonl, too")
    gpu_name = _named(gpu) if gpu else None
    if operator is not None:
        _operators().load(operator)
    whole = as_json or out is not None
    few = None if whole else _first(db or locations.database(), limit + 1, operator, gpu_name)
    records, source = few or _stored(db or locations.database(), operator, gpu_name)
    if out is not None:
        key = signing.private_key(sign) if sign else None
        record_lines.write(out, [signing.signed(record, key) for record in records] if key else records)
        say(f"records written to {out}: {len(records)}")
    if as_json:
        races = read.races(db or locations.database())
        emit_json({"records": [_data(record, races) for record in records]})
        return
    if not records:
        say(f"no records in {source}: find some with `tuner search`")
        return
    names = ("operator", "problem", "GPU", "winner", "config", "evidence", "over runner-up", "tried", "made")
    shown = records[:limit]
    table(f"records in {source}", names, [_row(record) for record in shown], right=("over runner-up", "tried"))
    if len(records) > limit:
        say(f"these are the first {limit}: give --limit N, --json or --out FILE.jsonl for the others")
    for record in shown:
        if flaws := record.resources.flaws:
            identity = record.identity
            say(f"{identity.operator} on {identity.gpu}, {_problem(identity)}: {'; '.join(flaws)}")


def _data(record: TuningRecord, races: Sequence[FinalRace]) -> dict[str, Any]:
    """Return a record with the measurement details: cycles, device state, and the rounds of its race."""
    data: dict[str, Any] = to_data(record)
    # Imported here because a list without records does not need it.
    from tuner.evaluate.predict.predicted_time import recorded_time

    time = recorded_time(record)
    data["predicted_time"] = asdict(time) if time else None
    if (measured := record.measurement) is not None:
        data["measurement"] = asdict(measured) | {"cycles": measured.cycles}
        settled = [race for race in races if race.settled(record)]
        data["race"] = to_data(settled[-1]) if settled else None
    return data


def _stored(source: str, operator: str | None, gpu: str | None) -> tuple[list[TuningRecord], str]:
    """Return the current record of each operator, GPU and problem, and the name of the source.

    Files are read like applications read them, without SQLAlchemy. Servers and invalid databases are left to the store,
    with its messages. Invalid lines and rows are skipped.
    """
    path = Path(source).expanduser()
    if "://" not in source and path.is_dir():
        raise StoreError(f"cannot use the database {source}: it is a folder; name a file in it")
    if "://" not in source and not path.exists():
        return [], source
    try:
        stored, refused = read.read(source, operator, gpu)
    except StoreError:
        from tuner.store.sql import Store

        with Store.open(source) as store:
            return store.records(operator, gpu=gpu), store.place
    return _current(stored, refused), source


def _first(source: str, limit: int, operator: str | None, gpu: str | None) -> tuple[list[TuningRecord], str] | None:
    """Return the first records of a database with more than `limit`, without reading the others; None for other
    sources.
    """
    if "://" in source:
        from tuner.store.sql import Store

        with Store.open(source) as store:
            return store.records(operator, gpu=gpu, limit=limit), store.place
    try:
        first = read.first(source, limit, operator, gpu)
    except StoreError:  # which `_stored` explains
        return None
    return (_current(*first), source) if first else None


def _current(stored: Sequence[read.StoredRecord], refused: Sequence[str]) -> list[TuningRecord]:
    for sentence in refused:
        say(f"passed over: {sentence}")
    return record_lines.current(row.record for row in stored)


def _row(record: TuningRecord) -> tuple[str, ...]:
    identity = record.identity
    return (
        identity.operator,
        _problem(identity),
        identity.gpu,
        identity.implementation,
        _config(record),
        standing(record),
        f"{record.margin:.1%}",
        str(record.tried),
        record.created,
    )


def _problem(identity: Identity) -> str:
    """Return the non-default fields; all fields if the operator is missing or its fields have changed."""
    from tuner.spec.command_line import minimal_fields
    from tuner.spec.problem import from_fields

    data = decode(identity.problem)
    try:
        problem = from_fields(_operators().load(identity.operator).problem, data)
    except (TunerError, TypeError, KeyError, ValueError):
        return formatted(data)
    return formatted(minimal_fields(problem)) or "the defaults"


def _config(record: TuningRecord) -> str:
    """Format the config in the implementation's declared order if available; stored text is sorted."""
    try:
        kind = _operators().implementation(record.identity.operator, record.identity.implementation).config
    except TunerError:
        return formatted(record.config)
    declared = {choice.name: record.config[choice.name] for choice in fields(kind) if choice.name in record.config}
    return formatted(declared | dict(record.config))


def _named(gpu: str) -> str:
    from tuner.backends.gpu import named  # imported here because a list of all records does not need it

    return named(gpu).name


def _operators() -> Any:
    """Import the operators, whose references need NumPy, only if there are problems to format."""
    from tuner import operators

    return operators


def standing(record: TuningRecord) -> str:
    """Return the measured time, with SM clock cycles if known, or that the rank is only predicted."""
    if record.evidence is Evidence.MEASURED and record.measurement:
        time = record.measurement
        return f"measured {time.time_us:.1f} us" + (f", {time.cycles:.0f} cycles" if time.cycles else "")
    from tuner.evaluate.predict.predicted_time import recorded_time

    predicted = recorded_time(record)
    return f"predicted {predicted.band}" if predicted else "predicted, a rank"
