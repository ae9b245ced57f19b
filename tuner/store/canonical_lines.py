"""Fast reading of record lines in the exact form that `record_lines.to_line` writes.

A line is decoded into types that accept only the fields of a record, and encoded again. If the text is the same, it is
the line that `to_line` would write, so its digest is the digest of the record.
"""

from typing import Any, NamedTuple

from tuner.base.fields import Fields
from tuner.results.attempt import Evidence
from tuner.results.strict_json import record_in
from tuner.store import record_lines


class Parts(NamedTuple):
    """The columns that a database stores beside the line of a record."""

    operator: str
    problem: str  # canonical JSON
    fields: Fields  # of the problem
    gpu: str
    evidence: Evidence
    verdict: Any  # a Verdict, or a value with its fields and properties
    figure: object  # None: the prediction or measurement that the record's evidence requires is missing
    created: str


def parts(line: str) -> Parts | None:
    """Return the parts of a record's line; None if it is in another form or is no record.

    The encoder escapes all control characters except DEL, so a line that equals its encoding is printable without it.
    """
    if not line.isascii() or "\\" in line or "\x7f" in line or "0.0000" in line:  # json writes 1e-05 for 0.00001
        return None
    if (decoded := record_in(line.encode())) is None:
        return None
    record, fields = decoded
    if record.format != record_lines.FORMAT:
        return None
    evidence, of = record.evidence, record.identity
    figure = record.measurement if evidence is Evidence.MEASURED else record.prediction
    problem = bytes(of.problem).decode()
    return Parts(of.operator, problem, fields, of.gpu, evidence, record.verdict, figure, record.created)
