"""A problem as the fewest command-line options, and the command that tunes it."""

import shlex
from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any

from tuner.arch import GPU
from tuner.base.fields import Scalar
from tuner.errors import TunerError
from tuner.spec.operator import Operator
from tuner.spec.problem import to_fields


def search_command(operator: Operator[Any], problem: Any, target: GPU) -> str:
    """Return the command line that tunes a problem, without fields that others imply."""
    return _command("search", operator, problem, target.name)


def prove_command(operator: Operator[Any], problem: Any) -> str:
    """The command line that judges every implementation of a problem on the GPU of the machine where it runs."""
    return _command("prove", operator, problem, "here")


def _command(name: str, operator: Operator[Any], problem: Any, target: str) -> str:
    words = ["tuner", name, operator.name, "--gpu", target]
    for name, value in minimal_fields(problem).items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return shlex.join(words)


def minimal_fields(problem: Any) -> dict[str, Scalar]:
    """Return the fewest fields that determine the problem; all others have their default or are derived."""
    return _fewest(problem, {field.name for field in fields(problem)})


def independent_fields(problem: Any) -> dict[str, Scalar]:
    """Return the problem's fields without derived ones, such as `kv_heads` if it equals `heads`."""
    return _fewest(problem, {field.name for field in fields(problem) if getattr(problem, field.name) != field.default})


def _fewest(problem: Any, removable: Collection[str]) -> dict[str, Scalar]:
    """Return the fields of the problem without those of `removable` that the others imply."""
    kept = {field.name: getattr(problem, field.name) for field in fields(problem)}
    for field in fields(problem):
        rest = {name: value for name, value in kept.items() if name != field.name}
        if field.name in removable and field.default is not MISSING and _determines(problem, rest):
            kept = rest
    return {name: value for name, value in to_fields(problem).items() if name in kept}


def _determines(problem: Any, values: dict[str, Any]) -> bool:
    try:
        return bool(type(problem)(**values) == problem)
    except TunerError:  # these fields alone do not form a problem
        return False
