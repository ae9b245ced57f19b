"""Lines of records that are spelled as `lines.to_line` spells them: their parts, without parsing and writing all again.

A line is decoded by types that have the fields of a record and no others, and encoded again. Where that gives the same
text, it is the line that `to_line` would write, and its digest is that of the record.
"""

from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.results.attempt import Evidence
from tuner.results.strict_json import record_in, to_json, verdict_of
from tuner.results.verdict import Verdict
from tuner.store import record_lines


@dataclass(frozen=True, slots=True)
class Parts:
    """Of a record, what a database keeps beside its line."""

    operator: str
    problem: str  # canonical JSON
    fields: Fields  # of the problem
    gpu: str
    evidence: Evidence
    verdict: Verdict
    figure: object  # None: the record lacks the prediction or the measurement that it is said to have
    created: str


def parts(line: str) -> Parts | None:
    """The parts of a record's line; None for one that is spelled in another way, or is no record."""
    if not line.isascii() or not line.isprintable() or "\\" in line or "0.0000" in line:  # json has 1e-05 for 0.00001
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
