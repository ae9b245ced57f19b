"""Commands whose options are the fields of an operator's Problem, built from the dataclass."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tuner import operators
from tuner.base.fields import scalar
from tuner.cli import problems
from tuner.cli.output import examples, finished, guarded, literal
from tuner.cli.problems import Line
from tuner.errors import TunerError, UsageError, suggestion
from tuner.spec.operator import Operator

Body = Callable[..., None]  # body(operator, problems, **own options)
_FILE = "problems_file"
_ACROSS = "(several operators)"  # the hidden command of a group's `across` option


class OperatorGroup(TyperGroup):
    """A group with one command per operator, which lists the operators if the name is unknown.

    `across` is an option with a file of problems for several operators, handled by a separate command.
    """

    across = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if (
            self.across
            and args
            and args[0].startswith("-")
            and any(word.partition("=")[0] == self.across for word in args)
        ):
            args = [_ACROSS, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = suggestion(args[0], operators.names(), "tuner operators")
            typer.echo(f"error: unknown operator {args[0]!r}: {near}", err=True)
            raise typer.Exit(UsageError.exit_code)
        return super().resolve_command(ctx, args)


def group_of(
    name: str,
    body: Body,
    lines: Sequence[str],
    *,
    help: str,
    alone: Body | None = None,
    across: tuple[str, Callable[..., None]] | None = None,
) -> TyperGroup:
    """Return the commands `name OPERATOR [problem options] [own options]`; `body` receives the operator and its
    problems.

    `alone` is the command without an operator, by default the help. `across` is an option, such as `--misses`, and the
    function that it runs in place of an operator.
    """
    more = f"Options: `{name} OPERATOR --help`."
    group = typer.Typer(
        name=name,
        cls=OperatorGroup,
        no_args_is_help=alone is None,
        invoke_without_command=alone is not None,
        help=f"{help} {more}",
        epilog=examples(lines, operators.names()[0]),
        add_completion=False,
        subcommand_metavar="OPERATOR [ARGS]..." if alone is None else "[OPERATOR [ARGS]...]",
    )
    if alone is not None:
        group.callback(help=f"{help} {more}", epilog=examples(lines, operators.names()[0]))(_unless_named(alone))
    for operator in operators.names():
        summary = _summary(operator)
        full_help = f"{help.split('. ')[0].rstrip('.')}: {summary}"
        group.command(
            operator, help=full_help, short_help=summary, rich_help_panel="Operators", epilog=examples(lines, operator)
        )(_command(operator, body))
    if across:
        group.command(_ACROSS, hidden=True, help=f"{help.split('. ')[0].rstrip('.')}.")(guarded(across[1]))
    finished(commands := get_group(group))
    if across:
        assert isinstance(commands, OperatorGroup)
        commands.across = across[0]
    return commands


def _unless_named(alone: Body) -> Callable[..., None]:
    """Return the body of a group that runs if none of its commands is named."""

    def run(ctx: typer.Context, **options: Any) -> None:
        if ctx.invoked_subcommand is None:
            guarded(alone)(**options)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *inspect.signature(alone).parameters.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _summary(name: str) -> str:
    try:
        return literal(operators.load(name).summary)
    except TunerError as error:
        return f"(broken: {error})"


def _command(name: str, body: Body) -> Callable[..., None]:
    """Return a function with the signature from which Typer builds options."""
    try:
        problem_fields = fields(operators.load(name).problem)
    except TunerError:
        problem_fields = ()

    @guarded
    def run(**options: Any) -> None:
        operator = operators.load(name)
        chosen = {field.name: options.pop(field.name) for field in problem_fields}
        file = options.pop(_FILE)
        lines = problems.read(file) if file else [Line()]
        body(operator, list(_problems(operator, chosen, lines)), **options)

    options = [p for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
    parameters = [*map(_parameter, problem_fields), _file_parameter(), *options]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameter(field: Field[Any]) -> inspect.Parameter:
    """Return an option that is None by default, so that a file of problems may set the field."""
    flag, kind = _flag(field), bool if field.type is bool else list[str]
    usual = "required" if field.default is MISSING else f"default: {scalar(plain(field.default))}"
    option = typer.Option(
        f"{flag}/--no-{flag.removeprefix('--')}" if field.default is True else flag,
        help=literal(f"{field.metadata['help']}{_choices(field)} [{usual}]"),
        metavar="" if kind is bool else _metavar(field),
        rich_help_panel=_panel(field),
        show_default=False,
    )
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def _file_parameter() -> inspect.Parameter:
    option = typer.Option(
        "--problems",
        help="a file of problems, JSON (lines) or CSV: each line names fields, options give the others",
        metavar="FILE",
        rich_help_panel="Several problems",
    )
    annotation: Any = Annotated[Path | None, option]
    return inspect.Parameter(_FILE, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def _flag(field: Field[Any]) -> str:
    return f"--{field.name.replace('_', '-')}"


def _panel(field: Field[Any]) -> str:
    kinds = {"static": "Problem: what selects code", "extent": "Problem: sizes at run time"}
    return f"{kinds[field.metadata['kind']]} (several: A,B,C, or LO..HI by doubling)"


def _metavar(field: Field[Any]) -> str:
    return "INT…" if field.type is int else "NAME…"


def _choices(field: Field[Any]) -> str:
    """Return the values that the field accepts, unless its help already describes them, as for numbers."""
    return "" if field.type in (int, bool) else f" [{'|'.join(map(str, _accepted(field)))}]"


def _accepted(field: Field[Any]) -> list[Any]:
    kind = field.type
    choices = field.metadata["choices"] or (kind if isinstance(kind, type) and issubclass(kind, Enum) else ())
    return [plain(choice) for choice in choices]


def plain(value: Any) -> Any:
    """Return a field's value as typed on the command line: enums by their value."""
    return value.value if isinstance(value, Enum) else value


def _problems(operator: Operator[Any], options: Mapping[str, Any], lines: Sequence[Line]) -> Iterator[Any]:
    """Yield one distinct problem for every line of a file and combination of given values."""
    problems: dict[Any, None] = {}
    for line in lines:
        try:
            problems |= dict.fromkeys(_of_line(operator, options, line.fields))
        except UsageError as error:
            if not line.location:
                raise
            raise UsageError(f"{line.location}: {error}") from error
    yield from problems


def _of_line(operator: Operator[Any], options: Mapping[str, Any], line: Mapping[str, Any]) -> Iterator[Any]:
    fields_by_name = {field.name: field for field in fields(operator.problem)}
    if strangers := [name for name in line if name not in fields_by_name]:
        raise UsageError(f"{operator.name} has no field {strangers[0]!r} (known: {', '.join(fields_by_name)})")
    if twice := [name for name in line if options[name] is not None]:
        raise UsageError(f"{_flag(fields_by_name[twice[0]])} is an option of this command, too: give it in one place")
    axes = {name: _values(field, line.get(name, options[name])) for name, field in fields_by_name.items()}
    for values in product(*axes.values()):
        yield operator.problem(**dict(zip(axes, values, strict=True)))


def _values(field: Field[Any], value: Any) -> list[Any]:
    if value is None:
        if field.default is MISSING:
            raise UsageError(
                f"{_flag(field)} is missing: give it, or name {field.name} in every line of --problems FILE"
            )
        return [field.default]
    if field.type is bool:
        return [_switch(field, value)]
    values = value if isinstance(value, list) else [value]
    words = [word for text in values for part in str(text).split(",") for word in _spread(field, part.strip())]
    if not words:
        raise UsageError(f"{_flag(field)} {','.join(map(str, values))!r}: give at least one value")
    return [_value(field, word) for word in dict.fromkeys(words)]


def _spread(field: Field[Any], part: str) -> list[str]:
    """Expand `128..1024` to 128, 256, 512, 1024: each is twice the previous one, up to the end."""
    first, dots, last = part.partition("..")
    if field.type is not int or not dots:
        return [part] if part else []
    if not first or not last:
        raise UsageError(f"{_flag(field)} {part}: give LO..HI with both ends")
    begin, end = _value(field, first), _value(field, last)
    if not 0 < begin <= end:
        raise UsageError(f"{_flag(field)} {part}: give LO..HI with 0 < LO <= HI")
    return [str(begin << n) for n in range((end // begin).bit_length())]


def _switch(field: Field[Any], word: Any) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    value = words.get(str(word).lower())
    if value is None:
        raise UsageError(f"{field.name} {word!r}: give true or false")
    return value


def _value(field: Field[Any], word: str) -> Any:
    kind: Any = field.type
    try:
        return kind(word)
    except ValueError:
        allowed = _accepted(field)
        accepted = "give a whole number" if kind is int else f"known: {', '.join(map(str, allowed))}"
        raise UsageError(f"{_flag(field)} {word!r}: {accepted}") from None


def parse_config(config: type[Any], base: Any, settings: list[str]) -> Any:
    """Parse a config from `name=value` words over `base`. Raises UsageError for invalid names or values."""
    kinds: dict[str, Any] = {field.name: field.type for field in fields(config)}
    values, given = {name: getattr(base, name) for name in kinds}, set[str]()
    for word in (word for text in settings for word in text.split(",") if word):
        name, _, value = word.partition("=")
        if name not in kinds or not value:
            raise UsageError(f"--config {word!r}: give name=value with a name among {', '.join(kinds)}")
        if name in given:
            raise UsageError(f"--config sets {name} twice: give one value")
        given.add(name)
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
