"""Fast reading of record lines in the exact form that `record_lines.to_line` writes.

A line is decoded into types that accept only the fields of a record, and encoded again. If the text is the same, it is
the line that `to_line` would write, so its digest is the digest of the record.
"""

from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.results.attempt import Evidence
from tuner.results.strict_json import record_in, to_json, verdict_of
from tuner.results.verdict import Verdict
from tuner.store import record_lines


@dataclass(frozen=True, slots=True)
class Parts:
    """The columns that a database stores beside the line of a record."""

    operator: str
    problem: str  # canonical JSON
    fields: Fields  # of the problem
    gpu: str
    evidence: Evidence
    verdict: Verdict
    figure: object  # None: the prediction or measurement that the record's evidence requires is missing
    created: str


def parts(line: str) -> Parts | None:
    """Return the parts of a record's line; None if it is in another form or is no record."""
    if (
        not line.isascii() or not line.isprintable() or "\\" in line or "0.0000" in line
    ):  # json writes 1e-05 for 0.00001
        return None
    if (decoded := record_in(line)) is None:
        return None
    record, fields = decoded
    problem = bytes(record.identity.problem)
    if record.format != record_lines.FORMAT or to_json(record) != line.encode() or problem != to_json(fields):
        return None
    evidence = record.evidence
    figure = record.measurement if evidence is Evidence.MEASURED else record.prediction
    of = record.identity
    return Parts(of.operator, problem.decode(), fields, of.gpu, evidence, verdict_of(record), figure, record.created)
