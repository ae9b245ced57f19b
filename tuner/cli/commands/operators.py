"""`tuner operators`: the operators; for a single operator, its arguments, problem and implementations."""

from dataclasses import MISSING, fields
from typing import Annotated, Any

import typer

from tuner import operators
from tuner.base.fields import scalar
from tuner.cli.options import plain
from tuner.cli.output import JsonOption, emit_json, table, wrapped
from tuner.errors import TunerError
from tuner.spec.operator import Operator


def list_operators(
    operator: Annotated[str | None, typer.Argument(metavar="OPERATOR", help="all about this one")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the operators and their implementations, or describe one operator."""
    if as_json:
        emit_json([_data(name) for name in ([operator] if operator else operators.names())])
    elif operator:
        _describe(operators.load(operator))
    else:
        for name in operators.names():
            _print(name)


def _print(name: str) -> None:
    try:
        typer.echo(wrapped(f"{name}: {operators.load(name).summary}"))
        typer.echo(wrapped(f"  {', '.join(implementation.name for implementation in operators.implementations(name))}"))
    except TunerError as error:
        typer.echo(f"{name}: broken: {error}")


def _describe(operator: Operator[Any]) -> None:
    typer.echo(wrapped(f"{operator.name}: {operator.summary}"))
    sizes = {f.name for f in fields(operator.problem)}  # sizes are derived from a call's arrays
    arguments = [
        (argument.name, f"[{', '.join(argument.dims)}]" if argument.dims else "", argument.role.value, argument.doc)
        for argument in operator.arguments
        if argument.name not in sizes
    ]
    table("arguments", ("argument", "dims", "role", "what it is"), arguments)
    described = [
        (f.name, "" if f.default is MISSING else scalar(plain(f.default)), f.metadata["kind"], f.metadata["help"])
        for f in fields(operator.problem)
    ]
    table("problem", ("field", "default", "kind", "what it is"), described)
    implementations = operators.implementations(operator.name)
    rows = [
        (implementation.name, implementation.summary, ", ".join(f.name for f in fields(implementation.config)))
        for implementation in implementations
    ]
    table("implementations", ("implementation", "how", "config"), rows)


def _data(name: str) -> dict[str, Any]:
    try:
        return _operator_data(operators.load(name))
    except TunerError as error:
        if name not in operators.names():
            raise
        return {"name": name, "broken": str(error)}


def _operator_data(operator: Operator[Any]) -> dict[str, Any]:
    return {
        "name": operator.name,
        "summary": operator.summary,
        "problem": {f.name: {"kind": f.metadata["kind"], "help": f.metadata["help"]} for f in fields(operator.problem)},
        "arguments": [{"name": a.name, "dims": a.dims, "role": a.role.value, "doc": a.doc} for a in operator.arguments],
        "implementations": [
            {
                "name": implementation.name,
                "summary": implementation.summary,
                "config": [f.name for f in fields(implementation.config)],
            }
            for implementation in operators.implementations(operator.name)
        ],
    }
