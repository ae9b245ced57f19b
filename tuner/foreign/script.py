"""The first `tune_kernel` call of a Kernel Tuner script: the script runs as it is, with a stand-in for Kernel Tuner."""

import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import tuner
from tuner.backends import gpu
from tuner.errors import UsageError
from tuner.foreign.call import PARAMETERS

_TUNER, _CALL = "kernel_tuner", "tune_kernel"
_OF_DEVICES = ("pycuda", "cupy", "cupyx")  # with no GPU their arrays are NumPy's


class _Called(BaseException):
    """The call was made; nothing of the script that comes after it is run. No script catches it by accident."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__("tune_kernel was called")
        self.given = options


def called(script: Path, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """What the script gives to tune_kernel, by the names of its parameters.

    Raises UsageError where it ends without, with what went wrong.
    """
    with _stand_ins(), _command_line(script, arguments):
        try:
            runpy.run_path(str(script.resolve()), run_name="__main__")
        except _Called as call:
            return call.given
        except SystemExit as error:
            raise UsageError(
                f"{script} ended before it called tune_kernel ({error}): give its arguments after --"
            ) from error
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"{script} failed before it called tune_kernel: {type(error).__name__}: {error}"
            ) from error
    raise UsageError(f"{script} never called tune_kernel")


def named(positional: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of tune_kernel by name."""
    options = dict(zip(PARAMETERS, positional, strict=False)) | dict(keywords)
    if missing := [name for name in PARAMETERS[:5] if name not in options]:
        raise UsageError(f"tune_kernel needs {', '.join(missing)}")
    return options


def _tune_kernel(*positional: Any, gpu: Any = None, db: Any = None, **keywords: Any) -> None:  # noqa: ARG001
    """Also for `tuner.tune_kernel`, which knows two options of its own."""
    raise _Called(named(positional, keywords))


def _run_kernel(*_: Any, **__: Any) -> None:
    raise UsageError("the script calls run_kernel, for which a device is needed: leave its result out of answer")


@contextmanager
def _command_line(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """As `python script.py …` in the script's folder, whose files it opens by name."""
    before, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [script.name, *arguments], [str(script.resolve().parent)]
    try:
        with chdir(script.resolve().parent):
            yield
    finally:
        sys.argv, sys.path[:] = before, path


@contextmanager
def _stand_ins() -> Iterator[None]:
    """While it lasts, Kernel Tuner's modules are stand-ins, and those of devices where there is no device."""
    absent = [name for name in _OF_DEVICES if not gpu.available() or find_spec(name) is None]
    finder, tops = _Finder((_TUNER, *absent)), (_TUNER, *absent)
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    vars(tuner)[_CALL] = _tune_kernel  # found before its __getattr__
    try:
        yield
    finally:
        del vars(tuner)[_CALL]
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
            del sys.modules[name]
        sys.modules.update(before)


class _Finder(Loader):
    """Finds a stand-in for every module of some packages."""

    def __init__(self, tops: Sequence[str]) -> None:
        self._tops = tops

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._tops else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It is whole."""


class _StandIn(ModuleType):
    """A module in which every name stands for something that may be called, and makes NumPy's arrays where it can."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_ins: dict[str, Callable[..., None]] = {_CALL: _tune_kernel, "run_kernel": _run_kernel}
        if self.__name__.partition(".")[0] == _TUNER:
            return stand_ins.get(name, _Anything())
        return _ON_HOST.get(name) or getattr(np, name, None) or _Anything()


class _Anything:
    """Takes every call and every attribute, and does nothing."""

    def __call__(self, *_: Any, **__: Any) -> "_Anything":
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ON_HOST.get(name, self)

    def __or__(self, _: Any) -> "_Anything":
        return self  # flags

    def __mro_entries__(self, _bases: Any) -> tuple[type, ...]:
        return (object,)


def _empty(shape: Any, dtype: Any = np.float32, *_: Any, **__: Any) -> Any:
    return np.empty(shape, dtype)


def _zeros(shape: Any, dtype: Any = np.float32, *_: Any, **__: Any) -> Any:
    return np.zeros(shape, dtype)


_ON_HOST: dict[str, Callable[..., Any]] = {
    "pagelocked_empty": _empty,
    "pagelocked_zeros": _zeros,
    "empty_pinned": _empty,
    "zeros_pinned": _zeros,
    "asnumpy": np.asarray,
}
