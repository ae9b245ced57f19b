"""What a peer is, and the tensors that it runs on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tuner.spec.dtype import DType

_INSTALLED_BY = {  # packages that are imported by another name, or not from PyPI
    "fla": "flash-linear-attention",
    "flash_mla": "git+https://github.com/deepseek-ai/FlashMLA",
}
Tensors = Mapping[str, Any]  # torch tensors on one device, by argument
Scalars = Mapping[str, float]
Run = Callable[[], Any]  # queues the peer's kernels on the default stream; returns the outputs that it has, by argument


class AbsentError(Exception):
    """A peer cannot take part: not installed, or not made for this problem. The text is the reason."""


@dataclass(frozen=True)
class Peer:
    """`prepare(problem, tensors, scalars)` gives what runs it, or raises AbsentError."""

    name: str
    prepare: Callable[[Any, Tensors, Scalars], Run]
    many_launches: bool = False  # so that the host may bind it: it is timed in a CUDA graph as well
    patience_s: float = 90.0  # in which it is ready on one problem, from imports to its first run
    note: str = ""  # what a reader of its time must know


@dataclass(frozen=True)
class Context:
    """An operator's problem on the same tensors, which it may do more work for: a kernel of ours, run for context."""

    operator: str
    problem: Any


def module(name: str) -> Any:
    """An optional package. Raises AbsentError, with what to install where it is missing."""
    try:
        return import_module(name)
    except Exception as error:  # it may fail in any way: missing, or built for another machine
        package = name.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == package
        remedy = f": pip install {_INSTALLED_BY.get(package, package)}" if missing else ""
        raise AbsentError(f"{name} cannot be imported ({error}){remedy}") from error


def gpu_torch() -> Any:
    """torch, where it has a GPU. Raises AbsentError."""
    torch = module("torch")
    if not torch.cuda.is_available():
        raise AbsentError("torch is built without CUDA, or finds no GPU")
    return torch


def to_torch(arrays: Mapping[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Copies of NumPy arrays on a device of torch; scalars are left out. Raises AbsentError without torch, or a GPU."""
    torch = gpu_torch() if device == "cuda" else module("torch")
    return {name: _tensor(torch, array).to(device) for name, array in arrays.items() if isinstance(array, np.ndarray)}


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().double().cpu().numpy()
    return array


def captured(run: Run) -> Callable[[], object]:
    """What replays a peer that has run before, from a CUDA graph. Raises what torch raises where it is not captured."""
    torch = gpu_torch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    replay: Callable[[], object] = graph.replay
    return replay


def _tensor(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    dense, dtype = np.ascontiguousarray(array), DType.of(array.dtype)
    if dtype is not None and not dtype.in_numpy:  # torch does not take it from NumPy
        return torch.from_numpy(dense.view(f"i{dtype.itemsize}")).view(getattr(torch, dtype.framework_name))
    return torch.from_numpy(dense)
