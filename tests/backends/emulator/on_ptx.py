"""Runs kernel files on the PTX interpreter instead of the emulator, on the emulator's buffers."""

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np

from tests.backends.emulator.emulated import Call, Uninitialized, entries_of, source
from tests.support.claims import compiled_to_ptx
from tuner.backends import ptx
from tuner.backends.emulator import Buffer, EncodedTensorMap
from tuner.backends.ptx.launch import Value
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor

Replacements = tuple[tuple[str, str], ...]
_SWIZZLES = (0, 32, 64, 128)
_DTYPES = {2: DType.BF16, 4: DType.FP32}  # a box moves bits: only their width counts


@cache
def entries(file: str, arch: str, replace: Replacements = ()) -> dict[str, ptx.Entry]:
    return ptx.parse(compiled_to_ptx(source(file, entries_of(file), replace, "cuda"), arch))


class PtxKernel:
    """Has the `launch` method of `emulator.Kernel`; raises FaultError instead of returning findings."""

    def __init__(self, file: str, arch: str, replace: Replacements = (), order: ptx.Order = "together") -> None:
        self._entries, self._order = entries(file, arch, replace), order

    def launch(
        self,
        entry: str,
        grid: tuple[int, int, int],
        threads: int,
        smem_bytes: int,
        arguments: Sequence[Any],
        *_: object,
        cluster: int = 1,
    ) -> int:
        """Return the number of executed warp instructions; buffers contain the kernel's results."""
        buffers = {buffer.name: buffer for buffer in _held(arguments)}
        memory = ptx.Global({name: buffer.nbytes for name, buffer in buffers.items()}, frozenset(buffers))
        for name, buffer in buffers.items():
            memory.view(name, np.uint8, (buffer.nbytes,))[...] = buffer.view(np.uint8, (buffer.nbytes,))
        values = [_value(argument, buffers, memory) for argument in arguments]
        shape = ptx.Shape(grid, threads, smem_bytes, cluster)
        executed = ptx.launch(self._entries[entry], shape, memory, values, order=self._order, races=True)
        for name, buffer in buffers.items():
            buffer.view(np.uint8, (buffer.nbytes,))[...] = memory.view(name, np.uint8, (buffer.nbytes,))
        return executed


def _held(arguments: Sequence[Any]) -> list[Buffer]:
    """The buffers of a launch, with those that only a tensor map knows."""
    held = [argument for argument in arguments if isinstance(argument, Buffer)]
    mapped = [_behind(argument) for argument in arguments if isinstance(argument, EncodedTensorMap)]
    return held + [buffer for buffer in mapped if buffer.address not in {other.address for other in held}]


def _behind(map: EncodedTensorMap) -> Any:
    """Return the memory of a dense map, with a buffer's attributes."""
    nbytes = int(np.prod(map.size[: map.rank])) * map.element_bytes

    class Behind:
        name, address = f"map_{map.base:x}", map.base

        @staticmethod
        def view(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
            return np.ndarray(shape, dtype, (ctypes.c_uint8 * nbytes).from_address(map.base))

    Behind.nbytes = nbytes  # type: ignore[attr-defined]
    return Behind


def _value(argument: Any, buffers: dict[str, Buffer], memory: ptx.Global) -> Value:
    if isinstance(argument, EncodedTensorMap):
        name = next(name for name, buffer in buffers.items() if buffer.address == argument.base)
        rank, size = argument.rank, argument.element_bytes
        shape, strides, box = (
            tuple(extents[:rank])[::-1] for extents in (argument.size, argument.stride, argument.box)
        )
        swizzle = _SWIZZLES[argument.swizzle]
        return MappedTensor(name, memory.address(name), _DTYPES[size], shape, strides, box, swizzle)
    return memory.address(argument.name) if isinstance(argument, Buffer) else argument


def executed(call: Call, arch: str) -> dict[str, np.ndarray]:
    """A call's outputs by name."""
    with ExitStack() as stack:
        buffers = [stack.enter_context(Buffer.of(name, array)) for name, array in call.inputs.items()]
        views = {}
        for name, output in call.outputs.items():
            nbytes = int(np.prod(output.shape)) * np.dtype(output.dtype).itemsize
            buffer = stack.enter_context(Buffer(name, nbytes, writable=True))
            views[name] = buffer.view(output.dtype, output.shape)
            views[name].view(np.uint8)[...] = 255
            if not isinstance(output, Uninitialized):
                views[name][...] = output
            buffers.append(buffer)
        kernel = PtxKernel(call.file, arch, call.replace)
        sizes = call.grid, call.threads, call.smem_bytes
        kernel.launch(call.entry, *sizes, [*buffers, *call.scalars], cluster=call.cluster)
        return {name: view.copy() for name, view in views.items()}
