"""`tuner operators`: what can be computed, with which problems and implementations."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import typer

from tuner import operators
from tuner.cli.output import JsonOption, emit_json, wrapped
from tuner.errors import TunerError
from tuner.operator import Operator


def list_operators(as_json: JsonOption = False) -> None:
    """List the operators, their problems and their implementations."""
    if as_json:
        emit_json([_data(name) for name in operators.names()])
        return
    for name in operators.names():
        try:
            typer.echo("\n".join(map(wrapped, _lines(operators.load(name)))))
        except TunerError as error:
            typer.echo(f"{name}: broken: {error}")


def _lines(operator: Operator[Any]) -> Iterator[str]:
    yield f"{operator.name}: {operator.summary}"
    for each in operators.implementations(operator.name):
        yield f"  {each.name}: {each.summary} ({', '.join(f.name for f in fields(each.config))})"
    yield f"  problem: {', '.join(f.name for f in fields(operator.problem))}"


def _data(name: str) -> dict[str, Any]:
    try:
        return _operator_data(operators.load(name))
    except TunerError as error:
        return {"name": name, "broken": str(error)}


def _operator_data(operator: Operator[Any]) -> dict[str, Any]:
    return {
        "name": operator.name,
        "summary": operator.summary,
        "problem": {f.name: {"kind": f.metadata["kind"], "help": f.metadata["help"]} for f in fields(operator.problem)},
        "arguments": [{"name": a.name, "dims": a.dims, "role": a.role.value, "doc": a.doc} for a in operator.arguments],
        "implementations": [
            {"name": each.name, "summary": each.summary, "config": [f.name for f in fields(each.config)]}
            for each in operators.implementations(operator.name)
        ],
    }
