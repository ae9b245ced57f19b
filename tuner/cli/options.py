"""Commands whose options are the fields of an operator's Problem: built from the dataclass, once an operator."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from itertools import product
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tuner import operators
from tuner.cli.output import guarded
from tuner.errors import TunerError, UsageError
from tuner.operator import Operator

Body = Callable[..., None]  # body(operator, problems, **own options)


class OperatorGroup(TyperGroup):
    """A group with one command an operator, which says what operators there are when it does not know one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            typer.echo(f"error: unknown operator {args[0]!r} (known: {', '.join(operators.names())})", err=True)
            raise typer.Exit(UsageError.exit_code)
        return super().resolve_command(ctx, args)


def per_operator(app: typer.Typer, name: str, body: Body, *, help: str) -> None:
    """Add the command `name OPERATOR [problem options] [own options]`; `body` gets the operator and its problems."""
    group = typer.Typer(cls=OperatorGroup, no_args_is_help=True, help=help)
    for operator in operators.names():
        group.command(operator, help=_summary(operator, help))(_command(operator, body))
    app.add_typer(group, name=name)


def _summary(name: str, help: str) -> str:
    try:
        return f"{help.split('. ')[0].rstrip('.')}: {operators.load(name).summary}"
    except TunerError as error:
        return f"(broken: {error})"


def _command(name: str, body: Body) -> Callable[..., None]:
    """A function with the signature that Typer makes options of."""
    try:
        problem_fields = fields(operators.load(name).problem)
    except TunerError:
        problem_fields = ()

    @guarded
    def run(**given: Any) -> None:
        operator = operators.load(name)
        chosen = {each.name: given.pop(each.name) for each in problem_fields}
        body(operator, list(_problems(operator, chosen)), **given)

    own = [p for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
    parameters = [*map(_parameter, problem_fields), *own]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameter(each: Field[Any]) -> inspect.Parameter:
    flag = each.name.replace("_", "-")
    required = each.default is MISSING
    note = each.metadata["help"]
    if each.type is bool:
        option = typer.Option(f"--{flag}/--no-{flag}", help=note, rich_help_panel=_panel(each))
        annotation: Any = Annotated[bool, option]
        default: Any = bool(each.default)
    else:
        shown = inspect.Parameter.empty if required else str(_plain(each.default))
        option = typer.Option(
            f"--{flag}", help=f"{note}{_choices(each)}", metavar=_metavar(each), rich_help_panel=_panel(each)
        )
        annotation, default = Annotated[list[str], option], shown if required else [shown]
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _panel(each: Field[Any]) -> str:
    kinds = {"static": "Problem: what selects code", "extent": "Problem: sizes at run time"}
    return f"{kinds[each.metadata['kind']]} (several values: several problems)"


def _metavar(each: Field[Any]) -> str:
    return "INT[,INT…]" if each.type is int else "NAME[,NAME…]"


def _choices(each: Field[Any]) -> str:
    known = each.metadata["choices"]
    return f" [{'|'.join(str(_plain(choice)) for choice in known)}]" if known else ""


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _problems(operator: Operator[Any], chosen: dict[str, Any]) -> Iterator[Any]:
    """One problem for every combination of the values given."""
    axes = {each.name: _values(each, chosen[each.name]) for each in fields(operator.problem)}
    for values in product(*axes.values()):
        yield operator.problem(**dict(zip(axes, values, strict=True)))


def _values(each: Field[Any], given: Any) -> list[Any]:
    if each.type is bool:
        return [given]
    words = [word.strip() for text in given for word in str(text).split(",") if word.strip()]
    return [_value(each, word) for word in dict.fromkeys(words)]


def _value(each: Field[Any], word: str) -> Any:
    flag = each.name.replace("_", "-")
    kind: Any = each.type
    try:
        return kind(word)
    except ValueError:
        known = [item.value for item in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
        allowed = [_plain(choice) for choice in each.metadata["choices"]] or known
        accepted = f"known: {', '.join(map(str, allowed))}" if allowed else "give a whole number"
        raise UsageError(f"--{flag} {word!r}: {accepted}") from None


def parse_config(config: type[Any], base: Any, settings: list[str]) -> Any:
    """A config from `name=value` words over `base`. Raises UsageError for names or values it cannot have."""
    kinds: dict[str, Any] = {each.name: each.type for each in fields(config)}
    values = {name: getattr(base, name) for name in kinds}
    for word in (word for text in settings for word in text.split(",") if word):
        name, _, value = word.partition("=")
        if name not in kinds or not value:
            raise UsageError(f"--config {word!r}: give name=value with a name among {', '.join(kinds)}")
        values[name] = _config_value(name, kinds[name], value)
    return config(**values)


def _config_value(name: str, kind: Any, word: str) -> Any:
    if kind is bool:
        if word.lower() not in ("true", "false"):
            raise UsageError(f"--config {name}={word}: give true or false")
        return word.lower() == "true"
    try:
        return kind(word)
    except ValueError:
        raise UsageError(f"--config {name}={word}: not {'a whole number' if kind is int else kind.__name__}") from None
