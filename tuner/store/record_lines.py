"""Tuning records as lines of text: the format of `db/tuned/<device>.jsonl` and of the database, readable in diffs."""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from tuner.base.canonical_json import decode, encode
from tuner.base.fields import check_printable, check_scalars
from tuner.base.replacement import replacing
from tuner.errors import StoreError
from tuner.results.attempt import Identity
from tuner.results.codec import record_from, to_json_data
from tuner.results.record import TuningRecord

FORMAT = 1  # version of the format, raised when an older program would misread a line


def to_line(record: TuningRecord) -> str:
    """Return a record as canonical JSON without a newline. The problem is a nested object, not an encoded string."""
    data = to_json_data(record)
    data["identity"]["problem"] = decode(record.identity.problem)
    return encode({"format": FORMAT, **data})


def from_line(line: str) -> TuningRecord:
    """Return the record that `to_line` wrote. Raises StoreError for anything else."""
    try:
        data = decode(line)
        if data["format"] == FORMAT:
            if "\\" in line or not line.isprintable():  # JSON escapes these characters with a backslash
                check_printable(data)
            check_scalars(problem := data["identity"]["problem"])
            data["identity"]["problem"] = encode(problem)
            return record_from(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"not a tuning record: {type(error).__name__}: {error}") from error
    raise StoreError(f"format {data['format']!r}, but this program reads {FORMAT}: update it")


def digest_of(line: str) -> str:
    """Return the digest that a database stores beside a line."""
    return sha256(line.encode()).hexdigest()


def from_row(line: str, digest: str) -> TuningRecord:
    """Return the record in a row of a database. Raises StoreError if it is invalid or was modified."""
    if digest != digest_of(line):
        raise StoreError("it has changed since it was stored: its digest does not match")
    return from_line(line)


def current(records: Iterable[TuningRecord]) -> list[TuningRecord]:
    """Return the first record of each operator, GPU and problem, sorted."""
    first: dict[tuple[str, str, str], TuningRecord] = {}
    for record in records:
        first.setdefault(_subject(record.identity), record)
    return [first[key] for key in sorted(first)]


def _subject(identity: Identity) -> tuple[str, str, str]:
    return identity.operator, identity.gpu, identity.problem


def write(path: Path, records: Iterable[TuningRecord]) -> None:
    """Replace `path` atomically by the sorted lines of `records`. Records of one problem keep their order, newest last.

    Raises StoreError if it cannot be written.
    """
    ordered = sorted(records, key=lambda record: _subject(record.identity))
    text = "".join(f"{to_line(record)}\n" for record in ordered)
    try:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8", newline="\n")
            partial.chmod(0o644)  # whatever the umask is, since these files are shared
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def read(path: Path) -> Iterator[TuningRecord]:
    """Yield the records of a file. Raises StoreError with the line number of the first invalid line."""
    for number, line in lines(path):
        try:
            yield from_line(line)
        except StoreError as error:
            raise StoreError(f"{path}, line {number}: {error}") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of a file with their numbers, from 1. Raises StoreError if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from ((number, line.rstrip("\n")) for number, line in enumerate(file, start=1) if not line.isspace())
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is no text file: records are lines of JSON in UTF-8") from error
