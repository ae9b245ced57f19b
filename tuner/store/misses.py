"""A log of applications' misses: problems that had no record of their own, with the number of calls, one per line.

Each line is written by one `write` to a file opened for appending, so lines of several processes do not interleave on a
local disk. A line starts with a newline, so that a line left incomplete by a killed process does not damage the next.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.base.canonical_json import decode, encode
from tuner.base.fields import check_printable, fields_from
from tuner.errors import StoreError

FORMAT = 1
LIMIT = 16 << 20  # maximum size of a file in bytes
RAN = ("default", "nearest")  # what a call ran: a default config, or the record of another problem or architecture


@dataclass(frozen=True, slots=True)
class Missed:
    """A problem without a record of its own, and its number of calls."""

    operator: str
    problem: str  # canonical JSON of all its fields
    gpu: str
    ran: str  # one of RAN
    calls: int


class FullError(StoreError):
    """A log of misses has reached its maximum size."""


def append(path: Path, missed: Missed, limit: int = LIMIT) -> None:
    """Append a line. Raises FullError at the file's maximum size, and StoreError if it cannot be written."""
    data = {"calls": missed.calls, "format": FORMAT, "gpu": missed.gpu, "operator": missed.operator}
    line = encode(data | {"problem": decode(missed.problem), "ran": missed.ran})
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(file).st_size >= limit:
                raise FullError(f"the misses in {path} have reached {limit >> 20} MB: search them and remove the file")
            os.write(file, f"\n{line}".encode())
        finally:
            os.close(file)
    except OSError as error:
        raise StoreError(f"cannot write the misses to {path}: {error.strerror or error}") from error


def read(path: Path) -> tuple[list[Missed], list[str]]:
    """Return the misses of a file, one per problem, most frequent first, and a message for each invalid line."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"cannot read the misses in {path}: {error.strerror or error}") from error
    misses, refused = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            misses += [_parsed(line)] if line.strip() else []
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            refused.append(f"{path}, line {number}: it is no miss ({type(error).__name__}: {error})")
    return list(most_frequent_first(misses)), refused


def most_frequent_first(misses: Iterable[Missed]) -> Iterator[Missed]:
    """Return one miss per problem and GPU, with the sum of its calls."""
    summed: dict[tuple[str, str, str], Missed] = {}
    for missed in misses:
        key = missed.operator, missed.problem, missed.gpu
        before = summed.get(key)
        summed[key] = replace(missed, calls=missed.calls + before.calls) if before else missed
    yield from sorted(summed.values(), key=lambda missed: -missed.calls)


def _parsed(line: str) -> Missed:
    data = decode(line)
    check_printable(data)
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']!r}, and this program reads {FORMAT}")
    calls, ran = data["calls"], data["ran"]
    if type(calls) is not int or not 0 < calls < 2**63 or ran not in RAN:
        raise ValueError(f"{calls!r} calls that ran {ran!r}")
    operator, gpu = data["operator"], data["gpu"]
    if not isinstance(operator, str) or not isinstance(gpu, str):
        raise TypeError("the operator and the GPU are texts")
    return Missed(operator, encode(fields_from(data["problem"])), gpu, ran, calls)
