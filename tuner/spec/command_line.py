"""A problem in few words, and the command that tunes it."""

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
    """The command line that tunes a problem; fields that the others imply are left out."""
    words = ["tuner", "search", operator.name, "--gpu", target.name]
    for name, value in minimal_fields(problem).items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return shlex.join(words)


def minimal_fields(problem: Any) -> dict[str, Scalar]:
    """The fields that make this problem when the others have their defaults, or what they follow from."""
    return _fewest(problem, {each.name for each in fields(problem)})


def independent_fields(problem: Any) -> dict[str, Scalar]:
    """A problem without the fields that follow from others, such as a number of KV heads that is that of the heads."""
    return _fewest(problem, {each.name for each in fields(problem) if getattr(problem, each.name) != each.default})


def _fewest(problem: Any, spare: Collection[str]) -> dict[str, Scalar]:
    """The problem without those of the `spare` fields that need not be told."""
    told = {each.name: getattr(problem, each.name) for each in fields(problem)}
    for each in fields(problem):
        rest = {name: value for name, value in told.items() if name != each.name}
        if each.name in spare and each.default is not MISSING and _makes(problem, rest):
            told = rest
    return {name: value for name, value in to_fields(problem).items() if name in told}


def _makes(problem: Any, told: dict[str, Any]) -> bool:
    try:
        return bool(type(problem)(**told) == problem)
    except TunerError:  # no problem at all without the rest
        return False
