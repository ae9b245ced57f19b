"""Small kernels on the emulator: sources in kernels/, arrays in, arrays out."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tuner.backends.emulator import DEFAULT_ARCH, Buffer, Kernel, Mode, Run, build
from tuner.compiler.render import headers
from tuner.compiler.source import Source, Target

KERNELS = Path(__file__).parent / "kernels"
PLAIN = (Mode(), Mode(schedule="reverse", asynchronous="late"))
CHECKED = (Mode(True, "random", "late", 1), Mode(True, "random", "random", 2))


@dataclass(frozen=True)
class Uninitialized:
    """An output that the kernel writes."""

    dtype: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One launch: inputs, then outputs, then scalars, in the order of the kernel's parameters."""

    file: str
    entry: str
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray | Uninitialized]
    scalars: Sequence[np.generic] = ()
    grid: tuple[int, int, int] = (1, 1, 1)
    threads: int = 32
    smem_bytes: int = 0
    cluster: int = 1
    replace: tuple[tuple[str, str], ...] = field(default=())


@cache
def source(
    file: str, entries: tuple[str, ...], replace: tuple[tuple[str, str], ...] = (), target: Target = "host"
) -> Source:
    """Return a kernel file as a source after replacements, each of which must match its text."""
    text = (KERNELS / file).read_text()
    for old, new in replace:
        assert old in text, f"{file} has no {old!r}"
        text = text.replace(old, new)
    return Source(entries, text, headers(text, KERNELS, target), target)


def snippet(text: str, *entries: str, checked: bool = False) -> Kernel:
    """Return kernels from their text, which needs no includes for types.cuh and thread.cuh."""
    text = f'#include "thread.cuh"\n{text}'
    return build(Source(entries, text, headers(text, KERNELS, "host"), "host"), checked=checked)


# In a kernel written out in full, attributes and bounds may be on either side of `void`.
_KERNEL = re.compile(r'^extern "C" __global__\s+(?:(?:void|__\w+__\((?:[^()]|\([^()]*\))*\))\s+)*(\w+)\(', re.MULTILINE)
_BY_MACRO = re.compile(r"^\w+_KERNEL\((\w+)", re.MULTILINE)


@cache
def entries_of(file: str) -> tuple[str, ...]:
    """The kernels of a file, with those made by a macro: the first argument of a line `…_KERNEL(name, …`."""
    text = (KERNELS / file).read_text()
    return tuple(_KERNEL.findall(text) + _BY_MACRO.findall(text))


@cache
def kernel(file: str, checked: bool, replace: tuple[tuple[str, str], ...] = ()) -> Kernel:
    return build(source(file, entries_of(file), replace), checked=checked)


def launch(call: Call, mode: Mode, arch: str = DEFAULT_ARCH) -> tuple[dict[str, np.ndarray], Run]:
    """(outputs by name, what happened); `arch` is whose tensor cores compute."""
    with ExitStack() as stack:
        buffers = [stack.enter_context(Buffer.of(name, array)) for name, array in call.inputs.items()]
        views = {}
        for name, output in call.outputs.items():
            nbytes = int(np.prod(output.shape)) * np.dtype(output.dtype).itemsize
            known = not isinstance(output, Uninitialized)
            buffer = stack.enter_context(Buffer(name, nbytes, writable=True, initialized=known))
            views[name] = buffer.view(output.dtype, output.shape)
            if not isinstance(output, Uninitialized):
                views[name][...] = output
            buffers.append(buffer)
        runner = kernel(call.file, mode.checked, call.replace)
        sizes, arguments = (call.grid, call.threads, call.smem_bytes), [*buffers, *call.scalars]
        run = runner.launch(call.entry, *sizes, arguments, mode, cluster=call.cluster, arch=arch)
        return {name: view.copy() for name, view in views.items()}, run


def kinds(run: Run) -> set[str]:
    return {finding.kind for finding in run.findings}
