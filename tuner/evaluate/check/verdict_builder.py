"""Builds a verdict from the results of edge cases on the emulator, the PTX interpreter or a device."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from tuner.evaluate.check.compare import Expected, keep_worst, unexpected_write
from tuner.results.verdict import OutputError, Verdict
from tuner.spec.operator import Operator
from tuner.spec.problem import Arrays


@dataclass(frozen=True)
class CaseResult:
    """The result of an edge case: its name, inputs, expected outputs, outputs and findings."""

    case: str
    arrays: Mapping[str, Any]
    expected: Expected
    outputs: Arrays
    findings: tuple[str, ...] = ()  # findings of the backend, which end the check, so that outputs are not compared
    doubt: str = ""  # an error that does not end the check, because a later finding may identify its cause


class VerdictBuilder:
    """The intermediate verdict on a config."""

    def __init__(self, operator: Operator[Any]) -> None:
        self._operator = operator
        self.worst: dict[str, OutputError] = {}
        self.allowed: dict[str, float] = {}  # maximum limit of each output over the edge cases without cancellation
        self.cases: list[str] = []
        self.findings: tuple[str, ...] = ()
        self._doubt = ""

    @property
    def right(self) -> bool:
        return not self.findings and all(error.ok for error in self.worst.values())

    def add(self, ran: CaseResult) -> None:
        """Add the result of one edge case: findings first, then writes to arguments that must not change."""
        self.cases.append(ran.case)
        changed = "" if ran.findings else unexpected_write(self._operator, ran.arrays, ran.expected.exact, ran.outputs)
        self.findings = ran.findings or tuple(filter(None, (changed,)))
        if not self.findings:
            errors = ran.expected.errors(ran.outputs)
            keep_worst(self.worst, errors)
            for error in errors:
                allowed = error.allowed if isfinite(error.allowed) else error.usual_limit
                self.allowed[error.name] = max(allowed, self.allowed.get(error.name, 0.0))
            self._doubt = ran.doubt or self._doubt

    def verdict(self, where: str = "emulator") -> Verdict:
        findings = tuple(filter(None, (*self.findings, self._doubt)))
        return Verdict(tuple(self.worst.values()), findings, tuple(self.cases), where)


def verdict_of(operator: Operator[Any], runs: Iterable[CaseResult], where: str = "emulator") -> Verdict:
    """Return the verdict on a config from lazily evaluated runs; the first finding ends them."""
    trial = VerdictBuilder(operator)
    for ran in runs:
        trial.add(ran)
        if trial.findings:
            break
    return trial.verdict(where)
