"""From results of edge cases to a verdict, whether the emulator, the PTX interpreter or a device ran them."""

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
    """An edge case that was run: its name, inputs, expected results, outputs, and findings."""

    case: str
    arrays: Mapping[str, Any]
    expected: Expected
    outputs: Arrays
    findings: tuple[str, ...] = ()  # of who ran it: they end the trial, and its outputs are not looked at
    doubt: str = ""  # this ends nothing: a finding may name its cause


class VerdictBuilder:
    """What is known of a config so far."""

    def __init__(self, operator: Operator[Any]) -> None:
        self._operator = operator
        self.worst: dict[str, OutputError] = {}
        self.allowed: dict[str, float] = {}  # of each output the most that an edge case allowed, but for what cancels
        self.cases: list[str] = []
        self.findings: tuple[str, ...] = ()
        self._doubt = ""

    @property
    def right(self) -> bool:
        return not self.findings and all(error.ok for error in self.worst.values())

    def add(self, ran: CaseResult) -> None:
        """Take in the result of one edge case: first its findings, then writes to arguments that must stay."""
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
        said = tuple(filter(None, (*self.findings, self._doubt)))
        return Verdict(tuple(self.worst.values()), said, tuple(self.cases), where)


def verdict_of(operator: Operator[Any], runs: Iterable[CaseResult], where: str = "emulator") -> Verdict:
    """The verdict on a config by its runs, which are made as they are asked for: the first finding ends them."""
    trial = VerdictBuilder(operator)
    for ran in runs:
        trial.add(ran)
        if trial.findings:
            break
    return trial.verdict(where)
