"""Instance → CUDA source. Pure: equal arguments give equal text."""

import re
from dataclasses import fields
from enum import Enum
from functools import cache, lru_cache
from math import isfinite
from pathlib import Path
from traceback import extract_tb
from typing import Any

import jinja2

from tuner.base.assets import PRIMITIVES, TEMPLATE
from tuner.base.fork import ForkGuard
from tuner.compiler.source import COMMENT, TEXTURE, Source, Target, includes
from tuner.errors import TemplateError
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator
from tuner.spec.parameters import signature
from tuner.spec.plan import Plan
from tuner.spec.problem import check_fields, extents, to_fields

_RENDERING = ForkGuard("rendered a template")  # Jinja has locks, which no child may inherit locked
_ASSEMBLY = re.compile(r"^(?:(?!//).)*\basm\s*(?:volatile\s*)?\(", re.MULTILINE)
_PLAIN = "say Implementation(…, checked_on='ptx'): then the compiler's PTX is checked, which detects fewer races"
_OURS = (
    "there are no headers of CUDA or C++ where the GPU's compiler and the emulator's read one text: fp16, bf16 and "
    "integers are in types.cuh, templates/primitives/README.md lists the rest; shuffles, atomics and float4 need none. "
    f"Or {_PLAIN}"
)


def render(instance: Instance, target: Target = "cuda") -> Source:
    """The translation unit of a config; `target` picks the primitives: `cuda` for the GPU, `host` for the emulator.

    Raises TemplateError, with file and line, when the template and its Python side disagree.
    """
    try:  # before anything computes with values that may come from outside
        check_fields(instance.problem)
        check_fields(instance.config)
    except (TypeError, ValueError) as error:
        raise TemplateError(f"{instance.name} is not rendered: {error}") from error
    folder, name, plan = instance.operator.folder, template_name(instance.implementation), instance.plan()
    on_ptx = instance.implementation.checked_on == "ptx"
    if target == "host" and on_ptx:
        raise TemplateError(f"{folder.name}/{name} is checked on PTX: the emulator has no source of it")
    text = _expand(folder, name, _variables(instance, plan), spaced=on_ptx)
    if (foreign := next((include for include in includes(text) if not include.quoted), None)) and not on_ptx:
        raise TemplateError(f"{folder.name}/{name}: #include <{foreign.name}>: {_OURS}")
    entries = tuple(dict.fromkeys(launch.entry for launch in plan.launches))
    reached = headers(text, folder, target, passing=on_ptx)
    code = "\n".join((text, *(header for _, header in reached)))
    for constant in instance.operator.constants:
        if not re.search(rf"\b{constant.name}\b", code):
            raise TemplateError(
                f"{folder.name}/{name} has no __constant__ symbol {constant.name}, which an argument fills"
            )
    if texture := TEXTURE.search(text) or TEXTURE.search(_own(reached)):
        raise TemplateError(f"{folder.name}/{name} reads a texture ({texture[0]}): read the array, const or by __ldg")
    unbounded = target == "cuda" and "__launch_bounds__" not in COMMENT.sub("", text) + _own(reached)
    threads = max(launch.block_threads for launch in plan.launches) if unbounded else 0
    filled = tuple(argument.name for argument in instance.operator.constants)
    return Source(entries, text, reached, target, threads, filled)


@lru_cache(maxsize=256)
def _own(reached: tuple[tuple[str, str], ...]) -> str:
    """The code of an operator's headers, without primitives, which contain no kernels."""
    return "\n".join(COMMENT.sub("", text) for name, text in reached if not (PRIMITIVES / name).is_file())


def template_name(implementation: Implementation[Any, Any]) -> str:
    return f"{implementation.name}/{TEMPLATE}"


def template_variables(operator: Operator[Any], implementation: Implementation[Any, Any]) -> frozenset[str]:
    """The names that an implementation's template reads."""
    from jinja2 import meta

    text = (operator.folder / template_name(implementation)).read_text(encoding="utf-8")
    environment = _environment(operator.folder, implementation.checked_on == "ptx")
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(text)))
    except jinja2.TemplateSyntaxError as error:
        raise _misspelled(operator.folder, template_name(implementation), error) from error


def _variables(instance: Instance, plan: Plan) -> dict[str, Any]:
    """Return the variables of a template, without extents, which are kernel arguments."""
    problem, sizes = instance.problem, extents(instance.problem)
    chosen = {field.name: getattr(problem, field.name) for field in fields(problem) if field.name not in sizes}
    signatures = {launch.entry: signature(instance.operator, problem, plan, launch) for launch in plan.launches}
    arguments = (argument for argument in instance.operator.arguments if argument.optional)
    optional = {f"{argument.name}_argument": argument.expression(problem) for argument in arguments}
    return (
        chosen | to_fields(instance.config) | optional | dict(plan.constants) | {"signature": _Signatures(signatures)}
    )


class _Signatures(dict[str, str]):
    """Parameter lists by kernel."""

    def __missing__(self, entry: str) -> str:
        raise TemplateError(f"signature.{entry}: the plan launches no {entry!r}, but {', '.join(self)}")


def _expand(folder: Path, name: str, variables: dict[str, Any], *, spaced: bool = False) -> str:
    try:
        with _RENDERING:
            return _environment(folder, spaced).get_template(name).render(variables)
    except jinja2.TemplateNotFound as error:
        raise TemplateError(f"{folder.name}: template {error.name} is missing") from error
    except jinja2.TemplateSyntaxError as error:
        raise _misspelled(folder, error.name or name, error) from error
    except jinja2.UndefinedError as error:
        readable = f"a template may read {', '.join(variables)}; sizes at run time are parameters of the kernel"
        raise TemplateError(f"{folder.name}/{name}{_line(error, name)}: {error}: {readable}") from error
    except (TemplateError, TypeError) as error:
        raise TemplateError(f"{folder.name}/{name}{_line(error, name)}: {error}") from error


def _misspelled(folder: Path, name: str, error: jinja2.TemplateSyntaxError) -> TemplateError:
    # {%0, %1} of inline assembly begins as Jinja's tags do.
    why = f"; for inline assembly {_PLAIN}" if _ASSEMBLY.search(error.source or "") else ""
    return TemplateError(f"{folder.name}/{name}, line {error.lineno}: {error.message}{why}")


def _line(error: Exception, name: str) -> str:
    """Return the template line of an error, which jinja2 adds to the traceback."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename.endswith(f"/{name}")]
    return f", line {lines[-1]}" if lines else ""


def headers(text: str, folder: Path, target: Target, *, passing: bool = False) -> tuple[tuple[str, str], ...]:
    """(include name, text) of every header that `text`, or one of them, includes; `folder` is the operator's.

    With `passing`, missing headers are left to the compiler.
    """
    texts: dict[str, str] = {}
    pending = _quoted(text)
    while pending:
        name = pending.pop()
        if name not in texts and not (passing and _nowhere(name, _folders(folder, target))):
            texts[name] = header(name, folder, target)
            pending += _quoted(texts[name])
    return tuple(sorted(texts.items()))


def _quoted(text: str) -> list[str]:
    return [include.name for include in includes(text) if include.quoted]


def header(name: str, folder: Path, target: Target) -> str:
    """A header of the target, of both targets, of the operator, or of another operator (`name/tile.cuh`)."""
    return _header_text(name, _folders(folder, target))


def _folders(folder: Path, target: Target) -> tuple[Path, ...]:
    others = dict.fromkeys((folder.parent, PRIMITIVES.parent))  # operators beside this one, then those of the package
    return PRIMITIVES / target, PRIMITIVES, folder, *others


def forget() -> None:
    """Clear the cache of headers; templates reload automatically."""
    _header_text.cache_clear()
    _nowhere.cache_clear()


@cache
def _nowhere(name: str, folders: tuple[Path, ...]) -> bool:
    return not any((folder / file).is_file() for folder in folders for file in (name, f"{name}.jinja"))


@cache
def _header_text(name: str, folders: tuple[Path, ...]) -> str:
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
        if (folder / f"{name}.jinja").is_file():
            return _expand(folder, f"{name}.jinja", {})
    raise TemplateError(f'#include "{name}": no such header in {", ".join(folder.name for folder in folders)}')


def _literal(value: object) -> object:
    """A Python value as a CUDA C++ literal. Raises TypeError for other types."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return value.cuda
    if isinstance(value, float) and isfinite(value):
        return f"{value!r}f"
    if isinstance(value, int | str | jinja2.Undefined):  # an Undefined raises, by name, when it is printed
        return value
    if isinstance(value, Enum) and isinstance(value.value, int | str):
        return value.value
    raise TypeError(f"no CUDA literal for {value!r}")


@cache
def _environment(folder: Path, spaced: bool = False) -> jinja2.Environment:
    """With `spaced`, only what a blank follows belongs to Jinja: plain CUDA has `{%0, %1}` and `{{0.f}}` in it."""
    blank = " " if spaced else ""
    return jinja2.Environment(
        block_start_string="{%" + blank,
        variable_start_string="{{" + blank,
        comment_start_string="{#" + blank,
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        finalize=_literal,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # C++, not HTML
    )
