"""The function that XLA calls to execute an operator: it passes XLA's buffers as arrays to the dispatcher.

It is a handler of XLA's foreign function interface (`xla/ffi/api/c_api.h`, which jaxlib ships: API version 0), written
in ctypes. The same handler serves the CPU and CUDA; on CUDA, CuPy views the buffers and kernels run on XLA's stream.
"""

import atexit
import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import Any, Protocol

import jax.ffi
import numpy as np

from tuner import dispatcher
from tuner.backends.gpu import foreign_memory
from tuner.spec.dtype import DType

TARGET = "kerntune_call"
ATTRIBUTE = "call"  # the call: JSON of (operator, names of the arrays, options)
_VERSION = (0, 3)  # of the interface that defines the structures below
_METADATA = 1  # XLA queries the version and makes no call
_INTERNAL = 13  # XLA_FFI_Error_Code
_XLA_DTYPES = {dtype.xla: dtype.numpy for dtype in DType}  # XLA_FFI_DataType
_Pointer = ctypes.c_void_p


def _struct(name: str, *fields: tuple[str, Any]) -> Any:
    """Base of the interface's structures, which start with their size and a chain of extensions."""
    own = {"_fields_": [("struct_size", ctypes.c_size_t), ("extension", _Pointer), *fields], "__doc__": name}
    return type(name, (ctypes.Structure,), own)


class _Span(ctypes.Structure):
    _fields_ = (("start", _Pointer), ("length", ctypes.c_size_t))


_Buffer = _struct(
    "XLA_FFI_Buffer",
    ("dtype", ctypes.c_int),
    ("data", _Pointer),
    ("rank", ctypes.c_int64),
    ("dims", ctypes.POINTER(ctypes.c_int64)),
)
_LIST = (("size", ctypes.c_int64), ("types", _Pointer))
_Buffers = _struct("XLA_FFI_Args, XLA_FFI_Rets", *_LIST, ("each", ctypes.POINTER(ctypes.POINTER(_Buffer))))
_Attributes = _struct(
    "XLA_FFI_Attrs",
    *_LIST,
    ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
    ("values", ctypes.POINTER(_Pointer)),
)
_Version = _struct("XLA_FFI_Api_Version", ("major", ctypes.c_int), ("minor", ctypes.c_int))
_ErrorCreate = _struct("XLA_FFI_Error_Create_Args", ("message", ctypes.c_char_p), ("code", ctypes.c_int))
_StreamGet = _struct("XLA_FFI_Stream_Get_Args", ("context", _Pointer), ("stream", _Pointer))
_FUNCTIONS = (
    "error_create",
    "error_get_message",
    "error_destroy",
    "handler_register",
    "stream_get",
)  # the first members
_Api = _struct("XLA_FFI_Api", ("version", _Version), ("internal", _Pointer), *((name, _Pointer) for name in _FUNCTIONS))
_Frame = _struct(
    "XLA_FFI_CallFrame",
    ("api", ctypes.POINTER(_Api)),
    ("context", _Pointer),
    ("stage", ctypes.c_int),
    ("arguments", _Buffers),
    ("results", _Buffers),
    ("attributes", _Attributes),
    ("future", _Pointer),
)


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("version", _Version))


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("next", _Pointer),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


_Handler = ctypes.CFUNCTYPE(_Pointer, ctypes.POINTER(_Frame))
_Function = ctypes.CFUNCTYPE(_Pointer, _Pointer)


def _on_cpu(frame: Any) -> int | None:
    return _handled(frame.contents, _in_memory)


def _on_cuda(frame: Any) -> int | None:
    return _handled(frame.contents, _on_device)


_HANDLERS = {"cpu": _Handler(_on_cpu), "CUDA": _Handler(_on_cuda)}  # kept alive, since XLA holds their addresses


@cache
def register() -> None:
    """Register the handlers with JAX for the lifetime of the process."""
    for platform, handler in _HANDLERS.items():
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform=platform)
    atexit.register(_settle)


def _settle() -> None:
    """Wait for running programs before the interpreter exits: a handler that starts later would wait forever."""
    for live_array in jax.live_arrays():
        with suppress(Exception):  # its error is reported to the reader of the array
            live_array.block_until_ready()


class Lender(Protocol):
    """Provide the conversion of XLA's buffers to arrays for the duration of a call."""

    def __call__(self, frame: Any) -> AbstractContextManager[tuple[Callable[[Any], Any], Callable[[Any, Any], None]]]:
        """Return a function from a buffer to its array, and one that copies an array into another."""


def _handled(frame: Any, lender: Lender) -> int | None:
    """Return the address of an XLA_FFI_Error, or None. No exception may propagate into XLA."""
    try:
        if frame.extension and (asked := _Extension.from_address(frame.extension)).kind == _METADATA:
            version = asked.metadata.contents.version
            version.major, version.minor = _VERSION
            return None
        operator, names, options = json.loads(_attribute(frame.attributes))
        with lender(frame) as (array, copy):
            given = [array(buffer) for buffer in _buffers(frame.arguments)]
            outputs = getattr(dispatcher, operator)(**dict(zip(names, given, strict=True)), **options)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for output, buffer in zip(outputs, _buffers(frame.results), strict=True):
                if output.size:
                    copy(array(buffer), output)
    except BaseException as error:  # including interrupts, which XLA raises again as its own error
        return _error(frame, f"{type(error).__name__}: {error}")
    return None


@contextmanager
def _in_memory(frame: Any) -> Iterator[Any]:  # noqa: ARG001
    yield _numpy_array, np.copyto


def _numpy_array(buffer: Any) -> Any:
    shape, dtype = _facts(buffer)
    if 0 in shape:
        return np.empty(shape, dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.ndarray(shape, dtype, (ctypes.c_char * nbytes).from_address(buffer.data))


@contextmanager
def _on_device(frame: Any) -> Iterator[Any]:
    def array(buffer: Any) -> Any:
        return foreign_memory.array(buffer.data, *_facts(buffer))

    first = next(array(buffer) for buffer in _buffers(frame.arguments) if buffer.data)
    with foreign_memory.current(_stream(frame), first.data.device_id):
        yield array, foreign_memory.copy


def _facts(buffer: Any) -> tuple[tuple[int, ...], Any]:
    return tuple(buffer.dims[: buffer.rank]), _XLA_DTYPES[buffer.dtype]


def _buffers(listed: Any) -> Iterator[Any]:
    return (listed.each[place].contents for place in range(listed.size))


def _attribute(attributes: Any) -> bytes:
    for place in range(attributes.size):
        if _text(attributes.names[place].contents) == ATTRIBUTE.encode():
            return _text(_Span.from_address(attributes.values[place]))
    raise AssertionError(f"a call without {ATTRIBUTE}")


def _text(span: Any) -> bytes:
    return ctypes.string_at(span.start, span.length)


def _stream(frame: Any) -> int:
    asked = _StreamGet(ctypes.sizeof(_StreamGet), None, frame.context, None)
    if _Function(frame.api.contents.stream_get)(ctypes.addressof(asked)):
        raise RuntimeError("XLA has no stream for this call")
    return asked.stream or 0


def _error(frame: Any, message: str) -> int | None:
    asked = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, message.encode(), _INTERNAL)
    result: int | None = _Function(frame.api.contents.error_create)(ctypes.addressof(asked))
    return result
