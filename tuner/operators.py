"""Operator discovery: a folder with operator.py is an operator, and a subfolder with kernel.cu.jinja an implementation.

There is no registration.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any

from tuner.arch import ARCHES
from tuner.base.assets import PEERS, TEMPLATE, TEMPLATES
from tuner.base.fork import ForkGuard
from tuner.errors import TemplateError, UsageError, suggestion
from tuner.spec.backward import matching_backward
from tuner.spec.contract import checked_implementation, checked_operator, line_of, validated
from tuner.spec.defaults import completed, completed_implementation
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.operator import Implementation, Operator
from tuner.spec.problem import from_fields

VARIABLE = "TUNER_OPERATORS"
_PEERS = PEERS.removesuffix(".py")
# Rewrites the imports of folders written for older versions.
_IMPORTS = r"s/from tuner\.(operator|space|argument|dtype|tensor_map|draw|result) import/from tuner.spec import/"
_RELATIVE = r"s/^from \.(\w*) import/from ..\1 import/"
_IMPORTING = ForkGuard("imported an operator")  # a child inherits the lock of a module that is being imported

# templates/<name>/operator.py is importable as tuner.operators.<name>.operator; user folders come after it.
__path__ = [str(TEMPLATES), *filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))]


def add_folder(folder: Path) -> None:
    """Search `folder` for operators, too."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of operators: name a folder that contains <operator>/operator.py")
    if str(folder) not in __path__:
        __path__.append(str(folder))
        os.environ[VARIABLE] = os.pathsep.join(__path__[1:])  # worker processes read this variable


@contextmanager
def folder(added: Path) -> Iterator[None]:
    """Make the operators of a folder available in this process inside the `with` block."""
    __path__.append(str(added))
    try:
        yield
    finally:
        __path__.remove(str(added))
        for name in (path.parent.name for path in added.glob("*/operator.py")):
            for module in [loaded for loaded in sys.modules if loaded.startswith(f"{__name__}.{name}")]:
                del sys.modules[module]


def names() -> tuple[str, ...]:
    """Return the names of all available operators, sorted."""
    return tuple(sorted({path.parent.name for root in __path__ for path in Path(root).glob("*/operator.py")}))


def load(name: str) -> Operator[Any]:
    """Load an operator by name. Raises UsageError if there is none or several, and TemplateError if it is broken."""
    if not name.isidentifier() or not _folders(name):
        raise UsageError(f"unknown operator {name!r}: {suggestion(name, names(), 'tuner operators')}")
    return _load(name)


def _folders(name: str) -> list[str]:
    """Return the folders that contain an operator of this name."""
    return [root for root in dict.fromkeys(__path__) if Path(root, name, "operator.py").is_file()]


@cache
def _load(name: str) -> Operator[Any]:
    if len(folders := _folders(name)) > 1:
        raise UsageError(f"operator {name!r} is in {' and in '.join(folders)}: give one of the folders another name")
    _check_shape(Path(folders[0], name))
    module = _module(name, "operator")
    operator = getattr(module, "OPERATOR", None)
    if not isinstance(operator, Operator) or operator.name != name:
        raise TemplateError(f"{name}/operator.py must define OPERATOR, an Operator named {name!r}")
    return completed(checked_operator(validated(replace(operator, folder=Path(module.__file__).parent))))


def backward(operator: Operator[Any]) -> Operator[Any] | None:
    """Return the operator of the gradients, or None if there is none. Raises TemplateError if the two do not fit."""
    if operator.gradient is None:
        return None
    try:
        gradient = load(operator.gradient.operator)
    except UsageError as error:
        raise TemplateError(f"{operator.name}/operator.py: the operator of its gradient: {error}") from error
    return matching_backward(operator, operator.gradient, gradient)


def peers(name: str) -> Any | None:
    """Return peers.py of an operator's folder, if present, for `bench`. Raises what `load` raises."""
    return _module(name, _PEERS) if (load(name).folder / PEERS).is_file() else None


@cache
def implementations(name: str) -> tuple[Implementation[Any, Any], ...]:
    """Return every implementation of an operator, sorted by name."""
    operator = load(name)
    loaded = []
    for folder in sorted(template.parent for template in operator.folder.glob(f"*/{TEMPLATE}")):
        implementation = getattr(_module(name, f"{folder.name}.implementation"), "IMPLEMENTATION", None)
        if not isinstance(implementation, Implementation) or implementation.name != folder.name:
            path, wanted = f"{name}/{folder.name}/implementation.py", f"an Implementation named {folder.name!r}"
            raise TemplateError(f"{path} must define IMPLEMENTATION, {wanted}")
        loaded.append(completed_implementation(operator, checked_implementation(operator, implementation)))
    if not loaded:
        raise TemplateError(f"{name} has no implementation: {operator.folder} holds no <implementation>/{TEMPLATE}")
    return tuple(loaded)


def _check_shape(folder: Path) -> None:
    """Raise TemplateError if implementations are files, with the command that converts them to folders."""
    if not (templates := sorted(folder.glob("*.cu.jinja"))):
        return
    names = " ".join(template.name.removesuffix(".cu.jinja") for template in templates)
    move = f"mkdir -p $each && mv $each.py $each/implementation.py && mv $each.cu.jinja $each/{TEMPLATE}"
    adapt = f"sed -i -E {quote(_RELATIVE)} $each/implementation.py"
    command = f"cd {quote(str(folder))} && for each in {names}; do {move} && {adapt}; done"
    raise TemplateError(
        f"{folder.name}/{templates[0].name}: an implementation is a folder now. "
        f"Convert them with: {command} && sed -i -E {quote(_IMPORTS)} *.py */*.py"
    )


def implementation(operator: str, name: str) -> Implementation[Any, Any]:
    """Return one implementation by name. Raises UsageError, which lists the known ones."""
    by_name = {implementation.name: implementation for implementation in implementations(operator)}
    if name not in by_name:
        near = suggestion(name, by_name, f"tuner operators {operator}")
        raise UsageError(f"{operator} has no implementation {name!r}: {near}")
    return by_name[name]


def instance(by: InstanceFields) -> Instance:
    """Build an instance from names and plain data. Raises UsageError if a name is unknown."""
    operator, one = load(by.operator), implementation(by.operator, by.implementation)
    return Instance(operator, one, from_fields(operator.problem, by.problem), from_fields(one.config, by.config))


def serves(implementation: Implementation[Any, Any], problem: Any) -> bool:
    """Return whether the implementation serves the problem on at least one arch."""
    return any(implementation.refusal(problem, arch) is None for arch in ARCHES.values())


def _module(operator: str, stem: str) -> Any:
    name, file = f"{__name__}.{operator}.{stem}", f"{operator}/{stem.replace('.', '/')}.py"
    before = _peers_loaded()
    try:
        with _IMPORTING:
            module = import_module(name)
    except TemplateError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise TemplateError(f"{file} is missing beside {TEMPLATE}: it defines IMPLEMENTATION") from error
        line = line_of(error, [Path(path, operator) for path in __path__])  # a SyntaxError names its line itself
        raise TemplateError(f"{file} cannot be imported: {type(error).__name__}: {error}{line}") from error
    if stem != _PEERS and (loaded := _peers_loaded() - before):
        for imported in (name, *loaded):  # forget them, so that another import raises the same error
            parent, _, child = imported.rpartition(".")
            delattr(sys.modules[parent], child)
            del sys.modules[imported]
        raise TemplateError(f"{file} imports {PEERS}, which no verdict depends on: move shared code to another file")
    return module


def _peers_loaded() -> set[str]:
    return {module for module in sys.modules if module.startswith(f"{__name__}.") and module.endswith(f".{_PEERS}")}
