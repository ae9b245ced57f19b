"""Compile the default of every implementation, and say which machine code has a flaw: spills, serialized wgmma, ...

    python benchmarks/defaults.py [--operator kda …] [--arch sm_80 …] [--every]

Problems: each head_dim with all else as it is by default, and, where head_dim is 64 or 128, each other static field
changed by itself, to each of its choices. --every takes head_dims in steps of 8, not those that are in use. What no
implementation takes is left out. Exits 1 where one is flawed.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

from tuner import operators
from tuner.arch import ARCHES
from tuner.errors import UsageError
from tuner.lint import lint_all
from tuner.nvrtc import Compiler
from tuner.operator import Implementation, Operator
from tuner.render import render
from tuner.result import Failed
from tuner.toolkit import Options

HEAD_DIMS = (16, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256)
VARIED = (64, 128)
_DIMS = ("head_dim", "key_dim", "value_dim")


@dataclass(frozen=True)
class Case:
    operator: Operator[Any]
    implementation: Implementation[Any, Any]
    problem: Any
    statics: str
    arch: str

    def __str__(self) -> str:
        return f"{self.operator.name}/{self.implementation.name} {self.arch} {self.statics}"


def main() -> int:
    options = _options()
    flawed = 0
    for name in options.operator:
        cases = list(_cases(name, options))
        jobs = [(_source(case), Options(case.arch)) for case in cases]
        with Compiler() as compiler:
            found = {place: _flaws(outcome) for place, outcome in compiler.compile_many(jobs)}
        for place in sorted(place for place, flaws in found.items() if flaws):
            print(f"FLAWED {cases[place]}: {'; '.join(found[place])}", flush=True)
        bad = sum(map(bool, found.values()))
        print(f"{name}: {len(found) - bad} of {len(found)} defaults have no flaw", flush=True)
        flawed += bad
    return 1 if flawed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = list(operators.names())
    parser.add_argument("--operator", nargs="+", default=known, choices=known)
    parser.add_argument("--arch", nargs="+", default=list(ARCHES), choices=list(ARCHES))
    parser.add_argument("--every", action="store_true", help="head_dims in steps of 8")
    return parser.parse_args()


def _cases(name: str, options: argparse.Namespace) -> Iterator[Case]:
    operator = operators.load(name)
    for statics in _statics(operator, tuple(range(8, 257, 8)) if options.every else HEAD_DIMS):
        try:
            problem = operator.problem(**statics)
        except UsageError:
            continue
        said = " ".join(f"{field}={getattr(value, 'value', value)}" for field, value in statics.items())
        for implementation in operators.implementations(name):
            for arch in options.arch:
                if implementation.refusal(problem, ARCHES[arch]) is None:
                    yield Case(operator, implementation, problem, said, arch)


def _statics(operator: Operator[Any], head_dims: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    known = {each.name: each for each in fields(operator.problem) if each.metadata["kind"] == "static"}
    dims = [name for name in _DIMS if name in known]
    others = {name: field for name, field in known.items() if name not in dims and field.default is not MISSING}
    for size in head_dims:
        yield dict.fromkeys(dims, size)
    for size in VARIED:
        for name, field in others.items():
            choices = (False, True) if isinstance(field.default, bool) else field.metadata["choices"]
            for value in choices:
                if value != field.default:
                    yield dict.fromkeys(dims, size) | {name: value}


def _source(case: Case) -> Any:
    config = case.implementation.default(case.problem, ARCHES[case.arch])
    return render(case.operator, case.implementation, case.problem, config)


def _flaws(outcome: Any) -> tuple[str, ...]:
    return (outcome.log,) if isinstance(outcome, Failed) else lint_all(outcome).failures


if __name__ == "__main__":
    sys.exit(main())
