"""NVRTC's C functions through cuda.bindings; cuda.pathfinder finds the library, as for CuPy.

Importing CuPy for them would take a quarter of a second. cuda.bindings takes 20 ms and 7 MB more than ctypes, once per
process that compiles (`python -X importtime -c 'import cuda.bindings.nvrtc'`).
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tuner.errors import MachineError

VARIABLE = "TUNER_NVRTC"  # path of the library, instead of searching for it
_BUILTINS = "libnvrtc-builtins.so.*"
INSTALL = "pip install 'kerntune[cuda13]' (or [cuda12]; [cuda13-local] with a CUDA toolkit that CUDA_PATH names)"


class NvrtcError(Exception):
    """An nvrtcResult other than success."""

    def __init__(self, status: Any) -> None:
        super().__init__(_given(_library().functions.nvrtcGetErrorString(status)).decode())
        self.status = int(status)


class Program:
    """A program of NVRTC: a source and, once compiled, its results."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def name(self, expression: str) -> None:
        """Request an entry by its C++ name, before `compile`; `symbol` returns its name in the machine code."""
        _given(_library().functions.nvrtcAddNameExpression(self._handle, expression.encode()))

    def symbol(self, expression: str) -> str:
        symbol: bytes = _given(_library().functions.nvrtcGetLoweredName(self._handle, expression.encode()))
        return symbol.decode()

    def compile(self, flags: Sequence[str]) -> None:
        """Raise NvrtcError if the compilation failed; the log then states the reason."""
        _given(_library().functions.nvrtcCompileProgram(self._handle, len(flags), [flag.encode() for flag in flags]))

    def ptx(self) -> bytes:
        return self._read("PTX").rstrip(b"\0")

    def cubin(self) -> bytes:
        return self._read("CUBIN")

    def log(self) -> str:
        return self._read("ProgramLog").rstrip(b"\0").decode(errors="replace").strip()

    def _read(self, what: str) -> bytes:
        functions = _library().functions
        data = bytearray(_given(getattr(functions, f"nvrtcGet{what}Size")(self._handle)))
        _given(getattr(functions, f"nvrtcGet{what}")(self._handle, data))
        return bytes(data)


@contextmanager
def program(text: str, headers: Sequence[tuple[str, str]]) -> Iterator[Program]:
    """Provide a program from a text and its (include name, text) headers, destroyed at the end of the context."""
    names, texts = ([header[i].encode() for header in headers] for i in (0, 1))
    functions = _library().functions
    handle = _given(functions.nvrtcCreateProgram(text.encode(), b"kernel.cu", len(headers), texts, names))
    try:
        yield Program(handle)
    finally:
        _given(functions.nvrtcDestroyProgram(handle))


def version() -> tuple[int, int]:
    """Return (major, minor) of the library. All functions here raise MachineError if there is no library."""
    major, minor = _given(_library().functions.nvrtcVersion())
    return major, minor


def supported() -> tuple[int, ...]:
    """Return the compute capabilities for which the library compiles, such as 80."""
    return tuple(_given(_library().functions.nvrtcGetSupportedArchs()))


def path() -> str:
    """Return the path of the library."""
    return _library().path


class _Library(NamedTuple):
    functions: ModuleType
    path: str


@cache
def _library() -> _Library:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    named = os.environ.get(VARIABLE)
    if named:
        _load(Path(named))
    try:
        path = str(load_nvidia_dynamic_lib("nvrtc").abs_path)  # so that cuda.bindings finds the same library
        from cuda.bindings import nvrtc
    except (RuntimeError, ImportError) as error:
        why = str(error).partition(",")[0]
        raise MachineError(f"compiling needs the NVRTC library ({why}): {INSTALL}") from error
    if named and not Path(path).samefile(named):
        raise MachineError(
            f"{VARIABLE} names {named}, but {path} is used: the file is no libnvrtc.so.12 or .13, or other code of "
            "this process loaded one before: compile first"
        )
    return _Library(nvrtc, path)


def _load(library: Path) -> None:
    """Load a library with its built-in functions. cuda.pathfinder prefers libraries that are already loaded, and so
    does NVRTC. Raises MachineError if the path is no such pair of libraries.
    """
    give = f"give {VARIABLE} the path of libnvrtc.so.13 or .12 in a CUDA toolkit or wheel"
    beside = sorted({path for folder in (library, library.resolve()) for path in folder.parent.glob(_BUILTINS)})
    if not library.is_file() or not beside:
        lacks = f"has no {_BUILTINS} beside it" if library.is_file() else "is no file"
        raise MachineError(f"{VARIABLE}={library} {lacks}: {give}")
    try:
        for path in (*beside, library):
            ctypes.CDLL(str(path), mode=os.RTLD_NOW)
    except OSError as error:
        raise MachineError(f"{VARIABLE}={library} cannot be loaded ({error}): {give}") from error


def _given(answer: tuple[Any, ...]) -> Any:
    """Return the values of an answer without its status: none, one or several. Raises NvrtcError for a failure."""
    status, *values = answer
    if status:
        raise NvrtcError(status)
    return values[0] if len(values) == 1 else values
