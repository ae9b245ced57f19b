"""The first `tune_kernel` call of a Kernel Tuner script, captured by running the script with a stub of Kernel Tuner."""

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
_OF_DEVICES = ("pycuda", "cupy", "cupyx")  # their arrays become NumPy arrays if there is no GPU


class _Called(BaseException):
    """Raised at the call, so that the rest of the script does not run. It is a BaseException so that scripts do not
    catch it.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__("tune_kernel was called")
        self.given = options


def called(script: Path, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arguments that the script passes to tune_kernel, by parameter name.

    Raises UsageError, with the reason, if the script ends without a call.
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
    """Return the arguments of a call of tune_kernel by name."""
    options = dict(zip(PARAMETERS, positional, strict=False)) | dict(keywords)
    if missing := [name for name in PARAMETERS[:5] if name not in options]:
        raise UsageError(f"tune_kernel needs {', '.join(missing)}")
    return options


def _tune_kernel(*positional: Any, gpu: Any = None, db: Any = None, **keywords: Any) -> None:  # noqa: ARG001
    """Accept also `tuner.tune_kernel`, which has two options of its own."""
    raise _Called(named(positional, keywords))


def _run_kernel(*_: Any, **__: Any) -> None:
    raise UsageError("the script calls run_kernel, which needs a device: omit its result from answer")


@contextmanager
def _command_line(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Emulate `python script.py …` in the script's folder, so that it finds its files."""
    before, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [script.name, *arguments], [str(script.resolve().parent)]
    try:
        with chdir(script.resolve().parent):
            yield
    finally:
        sys.argv, sys.path[:] = before, path


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Replace Kernel Tuner's modules by stubs, and device modules if there is no device, inside the `with` block."""
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
    """Finds a stub for every module of some packages."""

    def __init__(self, tops: Sequence[str]) -> None:
        self._tops = tops

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._tops else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stub needs no execution."""


class _StandIn(ModuleType):
    """A stub module: every attribute is callable, and array functions return NumPy arrays."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_ins: dict[str, Callable[..., None]] = {_CALL: _tune_kernel, "run_kernel": _run_kernel}
        if self.__name__.partition(".")[0] == _TUNER:
            return stand_ins.get(name, _Anything())
        return _ON_HOST.get(name) or getattr(np, name, None) or _Anything()


class _Anything:
    """An object that accepts every call and attribute access and does nothing."""

    def __call__(self, *_: Any, **__: Any) -> "_Anything":
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ON_HOST.get(name, self)

    def __or__(self, _: Any) -> "_Anything":
        return self  # combined flags

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
