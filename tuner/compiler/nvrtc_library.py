"""NVRTC's C functions, of the library that CuPy would find too: importing CuPy for them takes a quarter of a second."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL, byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from functools import cache
from typing import NamedTuple

from tuner.errors import MachineError

INSTALL = "pip install 'kerntune[cuda13]' (or [cuda12]; [cuda13-local] with a CUDA toolkit that CUDA_PATH names)"


class NvrtcError(Exception):
    """An nvrtcResult other than success."""

    def __init__(self, status: int) -> None:
        super().__init__(_library().functions.nvrtcGetErrorString(status).decode())
        self.status = status


class Program:
    """A source that NVRTC holds, and what it made of it."""

    def __init__(self, handle: c_void_p) -> None:
        self._handle = handle

    def compile(self, flags: Sequence[str]) -> None:
        """Raises NvrtcError; then the log says why."""
        _call("nvrtcCompileProgram", self._handle, len(flags), _texts(flags))

    def ptx(self) -> bytes:
        return self._read("PTX").rstrip(b"\0")

    def cubin(self) -> bytes:
        return self._read("CUBIN")

    def log(self) -> str:
        return self._read("ProgramLog").rstrip(b"\0").decode(errors="replace").strip()

    def _read(self, what: str) -> bytes:
        size = c_size_t()
        _call(f"nvrtcGet{what}Size", self._handle, byref(size))
        data = create_string_buffer(size.value)
        _call(f"nvrtcGet{what}", self._handle, data)
        return data.raw


@contextmanager
def program(text: str, headers: Sequence[tuple[str, str]]) -> Iterator[Program]:
    """A program of a text and its headers, (include name, text) each; it is gone when the context ends."""
    handle = c_void_p()
    names, texts = (_texts([each[i] for each in headers]) for i in (0, 1))
    _call("nvrtcCreateProgram", byref(handle), text.encode(), b"kernel.cu", len(headers), texts, names)
    try:
        yield Program(handle)
    finally:
        _call("nvrtcDestroyProgram", byref(handle))


def version() -> tuple[int, int]:
    """(major, minor) of the library. This, and all else here, raises MachineError where there is none."""
    major, minor = c_int(), c_int()
    _call("nvrtcVersion", byref(major), byref(minor))
    return major.value, minor.value


def supported() -> tuple[int, ...]:
    """The compute capabilities that the library compiles for, as 80."""
    count = c_int()
    _call("nvrtcGetNumSupportedArchs", byref(count))
    found = (c_int * count.value)()
    _call("nvrtcGetSupportedArchs", found)
    return tuple(found)


def path() -> str:
    """Where the library is."""
    return _library().path


class _Library(NamedTuple):
    functions: CDLL
    path: str


@cache
def _library() -> _Library:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        path = str(load_nvidia_dynamic_lib("nvrtc").abs_path)
    except RuntimeError as error:
        why = str(error).partition(",")[0]
        raise MachineError(f"compiling needs the NVRTC library ({why}): {INSTALL}") from error
    functions = CDLL(path)
    functions.nvrtcGetErrorString.restype = c_char_p
    return _Library(functions, path)


def _call(name: str, *arguments: object) -> None:
    if status := getattr(_library().functions, name)(*arguments):
        raise NvrtcError(status)


def _texts(texts: Sequence[str]) -> object:
    """A `const char* const*`."""
    return (c_char_p * len(texts))(*(text.encode() for text in texts))
