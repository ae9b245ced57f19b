"""`tuner operators`: what can be computed, with which problems and implementations."""

from dataclasses import fields
from typing import Any

import typer

from tuner import operators
from tuner.cli.output import JsonOption, emit_json
from tuner.operator import Operator


def list_operators(as_json: JsonOption = False) -> None:
    """List the operators, their problems and their implementations."""
    found = [operators.load(name) for name in operators.names()]
    if as_json:
        emit_json([_operator_data(operator) for operator in found])
        return
    for operator in found:
        typer.echo(f"{operator.name}: {operator.summary}")
        for each in operators.implementations(operator.name):
            names = ", ".join(f.name for f in fields(each.config))
            typer.echo(f"  {each.name}: {each.summary} ({names})")
        names = ", ".join(f.name for f in fields(operator.problem))
        typer.echo(f"  problem: {names}")


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
