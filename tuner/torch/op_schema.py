"""Schemas of operators in torch's notation."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from tuner.errors import TemplateError
from tuner.spec.operator import Operator, Updated

_EITHER = Any | float  # an array or a number: torch needs an overload for each
_TYPES: dict[Any, str] = {
    Any: "Tensor",
    _EITHER: "Tensor",
    Updated: "Tensor(a!)",
    bool: "bool",
    int: "int",
    int | None: "SymInt?",  # a length, which may be symbolic
    float: "float",
    float | None: "float?",
    str: "str",
    tuple[Any, Any] | None: "Tensor[]?",
}


def schema(operator: Operator[Any]) -> str:
    """Return the operator's schema for tensors. Raises TemplateError for a parameter without a torch type."""
    return _schema(operator, operator.name, _TYPES)


def overloads(operator: Operator[Any]) -> tuple[str, ...]:
    """Return the schema for tensors and, as `<name>.scalar`, the one in which a number replaces an array."""
    numbers = any(parameter.annotation == _EITHER for parameter in _parameters(operator).values())
    scalar = (_schema(operator, f"{operator.name}.scalar", {**_TYPES, _EITHER: "float"}),) * numbers
    return (schema(operator), *scalar)


def functional(operator: Operator[Any]) -> str:
    """Return the schema of calls without updates, named `<name>_functional`, with positional parameters only."""
    words = [
        _declared(operator, parameter, {**_TYPES, Updated: "Tensor"}) for parameter in _parameters(operator).values()
    ]
    return f"{operator.name}_functional({', '.join(words)}) -> {_results(operator)}"


def names_tensors(operator: Operator[Any]) -> bool:
    """Return whether any tensor is keyword-only: torch does not differentiate such operators."""
    named = (parameter for parameter in _parameters(operator).values() if parameter.kind is Parameter.KEYWORD_ONLY)
    return any(_TYPES.get(parameter.annotation, "").startswith("Tensor") for parameter in named)


def _schema(operator: Operator[Any], name: str, types: Mapping[Any, str]) -> str:
    words: list[str] = []
    for parameter in _parameters(operator).values():
        if parameter.kind is Parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(_declared(operator, parameter, types))
    return f"{name}({', '.join(words)}) -> {_results(operator)}"


def _parameters(operator: Operator[Any]) -> Mapping[str, Parameter]:
    return signature(operator.call).parameters


def _results(operator: Operator[Any]) -> str:
    results = ", ".join(["Tensor"] * len(operator.outputs))
    return f"({results})" if len(operator.outputs) > 1 else results


def _declared(operator: Operator[Any], parameter: Parameter, types: Mapping[Any, str]) -> str:
    if parameter.annotation not in types:
        known = ", ".join(map(str, types))
        raise TemplateError(f"{operator.name}: torch has no type for the parameter {parameter} (known: {known})")
    optional = parameter.annotation in (Any, Updated) and parameter.default is None
    declared = f"{types[parameter.annotation]}{'?' * optional} {parameter.name}"
    if parameter.default is Parameter.empty:
        return declared
    spelled = f'"{parameter.default}"' if isinstance(parameter.default, str) else str(parameter.default)
    return f"{declared}={spelled}"
