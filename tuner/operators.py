"""Discovery: every folder of templates/ with an operator.py is an operator, every template beside a module an
implementation. Nothing is registered."""

import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tuner.assets import TEMPLATES
from tuner.errors import TemplateError, UsageError
from tuner.operator import Implementation, Operator

_VARIABLE = "TUNER_OPERATORS"

# templates/<name>/operator.py is importable as tuner.operators.<name>.operator; folders of the user come after.
__path__ = [str(TEMPLATES), *filter(None, os.environ.get(_VARIABLE, "").split(os.pathsep))]


def add_folder(folder: Path) -> None:
    """Look for operators in `folder` too."""
    if not folder.is_dir():
        raise UsageError(f"no folder of operators at {folder}: give a folder that holds <operator>/operator.py")
    if str(folder) not in __path__:
        __path__.append(str(folder))
        os.environ[_VARIABLE] = os.pathsep.join(__path__[1:])  # worker processes find it there


def names() -> tuple[str, ...]:
    """Every operator that can be found, sorted."""
    return tuple(sorted({path.parent.name for root in __path__ for path in Path(root).glob("*/operator.py")}))


def load(name: str) -> Operator[Any]:
    """The operator of a folder. Raises UsageError for an unknown name, TemplateError for a broken folder."""
    if name not in names():
        raise UsageError(f"unknown operator {name!r} (known: {', '.join(names())})")
    return _load(name)


@cache
def _load(name: str) -> Operator[Any]:
    operator = getattr(_module(name, "operator"), "OPERATOR", None)
    if not isinstance(operator, Operator) or operator.name != name:
        raise TemplateError(f"{name}/operator.py must define OPERATOR, an Operator named {name!r}")
    return operator


@cache
def implementations(name: str) -> tuple[Implementation[Any, Any], ...]:
    """Every implementation of an operator, by name."""
    folder = load(name).folder
    found = []
    for template in sorted(folder.glob("*.cu.jinja")):
        stem = template.name.removesuffix(".cu.jinja")
        implementation = getattr(_module(name, stem), "IMPLEMENTATION", None)
        if not isinstance(implementation, Implementation) or implementation.name != stem:
            raise TemplateError(f"{name}/{stem}.py must define IMPLEMENTATION, an Implementation named {stem!r}")
        found.append(implementation)
    return tuple(found)


def implementation(operator: str, name: str) -> Implementation[Any, Any]:
    """One implementation by name. Raises UsageError with the known ones."""
    found = {each.name: each for each in implementations(operator)}
    if name not in found:
        raise UsageError(f"{operator} has no implementation {name!r} (known: {', '.join(found)})")
    return found[name]


def _module(operator: str, stem: str) -> Any:
    try:
        return import_module(f"{__name__}.{operator}.{stem}")
    except TemplateError:
        raise
    except Exception as error:
        raise TemplateError(f"{operator}/{stem}.py cannot be imported: {type(error).__name__}: {error}") from error
