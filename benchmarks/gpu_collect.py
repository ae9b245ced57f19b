"""Convert the results of `gpu.py`: tables in Markdown on stdout, and records into the shipped files.

    python benchmarks/gpu_collect.py gpu.tar.gz > tables.md          a folder of --out, its --archive, or its rows.jsonl
    python benchmarks/gpu_collect.py gpu.tar.gz --records            add its records to db/tuned

Only measured results with a verdict become shipped records; results of a simulated device never do.
"""

import argparse
import shutil
import sys
import tarfile
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gpu_path  # noqa: F401  # before the package is imported
import gpu_rows
from gpu_markdown import Device, document

from tuner import operators
from tuner.dispatcher.config_choice import refusal
from tuner.errors import TunerError, UsageError
from tuner.evaluate.measure.policy import is_of_times
from tuner.report.notation import counted
from tuner.results.attempt import Evidence
from tuner.results.record import TuningRecord
from tuner.store import locations, record_lines
from tuner.store.sql import Store


def unpacked(source: Path, stack: ExitStack) -> Path:
    """Return the folder of a run, the needed files of its archive without their paths, or only its rows."""
    if source.is_dir():
        return source
    folder = Path(stack.enter_context(TemporaryDirectory()))
    (folder / "tuned").mkdir()
    if source.suffix == ".jsonl" and source.is_file():
        shutil.copy(source, folder / gpu_rows.NAME)
        return folder
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                name = Path(member.name)
                into = folder / name.name if name.name == gpu_rows.NAME else folder / "tuned" / name.name
                if member.isfile() and into.suffix == ".jsonl":
                    content = archive.extractfile(member)
                    into.write_bytes(content.read() if content else b"")
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:  # the file may be truncated anywhere
        raise UsageError(f"{source} is neither a folder nor an archive of a run: {error}") from error
    return folder


def results(folder: Path) -> dict[str, Any]:
    """Return the steps of a run, regardless of how it ended."""
    try:
        steps = gpu_rows.read(folder)
    except OSError as error:
        raise UsageError(f"no {gpu_rows.NAME} of a run: {error}") from error
    if not steps:
        raise UsageError(f"{gpu_rows.NAME} contains no row of a run")
    return steps


def records(folder: Path, device: Device) -> list[TuningRecord]:
    """Return the records of a run, all measured on its device. Raises UsageError for any other record."""
    if not device.known:
        raise UsageError("the run ended before it knew its device: it has no records")
    if device.simulated:
        raise UsageError("the device was simulated: its times are no measurements, and its records do not ship")
    result = [row for path in sorted((folder / "tuned").glob("*.jsonl")) for row in record_lines.read(path)]
    for row in result:
        identity = row.identity
        if row.evidence is not Evidence.MEASURED or not is_of_times(identity.policy):
            raise UsageError(f"a record of {identity.operator} was not measured: {identity.policy}")
        if identity.gpu != device.facts["gpu"]:
            raise UsageError(f"a record of {identity.operator} is of {identity.gpu}, not of {device.facts['gpu']}")
    return result


def ship(records: Sequence[TuningRecord], folder: Path) -> str:
    """Add records to a device's file, which keeps the newest record of each problem; return a summary.

    Raises StoreError, without changes, for a record whose verdict is not ok.
    """
    if not records:
        return "no record"
    gpu = records[0].identity.gpu
    path = folder / f"{gpu}.jsonl"
    with Store.open(":memory:") as store:
        if path.exists():
            store.import_jsonl(path)
        before = len(store.all_records())
        slower = [record for record in records if _is_behind(record, store)]
        for record in records:
            if record not in slower:
                store.promote(record)
        new, total = len(store.all_records()) - before, store.export_jsonl(path, gpu=gpu)
    summary = [f"{path}: {counted(total, 'record', 'records')}, {new} new"]
    if slower:
        summary.append(f"{len(slower)} of the run are slower than the shipped records, which are kept")
    if stale := [record for record in records if refusal(record)]:
        summary.append(f"{len(stale)} of the run are not served, because the source has changed since")
    return "; ".join(summary)


def _is_behind(record: TuningRecord, store: Store) -> bool:
    """Return whether the shipped record of its problem is still served and faster: a short search found a worse
    config.
    """
    current = store.record(record.identity.operator, record.identity.problem, record.identity.gpu)
    if current is None or current.measurement is None or record.measurement is None or refusal(current):
        return False
    same = current.identity.policy == record.identity.policy
    return same and current.measurement.high_us < record.measurement.low_us


def main() -> int:
    options = _parser().parse_args()
    try:
        with ExitStack() as stack:
            folder = unpacked(options.source, stack)
            steps = results(folder)
            print(document(steps, options.only), end="")
            if options.records is not None:
                print(ship(records(folder, Device.of(steps)), options.records), file=sys.stderr)
    except TunerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the folder of --out, or the file of --archive")
    parser.add_argument(
        "--records",
        type=Path,
        nargs="?",
        const=locations.SHIPPED,
        help="add the records here [db/tuned, if no name follows]",
    )
    parser.add_argument(
        "--only", action="append", default=[], choices=operators.names(), help="tables of these operators"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
