"""Misses of applications, as lines of a file: the problems that no record of their own served, and how often.

A line is written by one call of `write` on a file that was opened for appending, so lines of several processes do not
mix on a local disk. It begins with the end of the line before, so that a line which a killed process left unfinished
does not damage the next one.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.base.canonical_json import decode, encode
from tuner.base.fields import check_printable, fields_from
from tuner.errors import StoreError

FORMAT = 1
LIMIT = 16 << 20  # bytes of a file, beyond which nothing is added
RAN = ("default", "nearest")  # what a call ran: a default config, or the record of another problem or architecture


@dataclass(frozen=True, slots=True)
class Missed:
    """A problem without a record of its own, and how many calls had it."""

    operator: str
    problem: str  # canonical JSON of all its fields
    gpu: str
    ran: str  # one of RAN
    calls: int


class FullError(StoreError):
    """A file of misses has reached its limit."""


def append(path: Path, missed: Missed, limit: int = LIMIT) -> None:
    """Add a line. Raises FullError where the file is at its limit, and StoreError where it cannot be written."""
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
    """The misses of a file, each problem once, the most frequent first; and a sentence for each line that is none."""
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
    """Each problem and GPU once, with the sum of its calls."""
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
