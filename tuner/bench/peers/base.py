"""The interface of a peer, and conversions of its tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tuner.spec.dtype import DType

_INSTALLED_BY = {  # packages whose install name differs from the import name, or that are not on PyPI
    "fla": "flash-linear-attention",
    "flash_mla": "git+https://github.com/deepseek-ai/FlashMLA",
}
Tensors = Mapping[str, Any]  # torch tensors on one device, by argument
Scalars = Mapping[str, float]
Run = Callable[[], Any]  # queues the peer's kernels on the default stream and returns its outputs by argument


class AbsentError(Exception):
    """A peer cannot take part because it is not installed or does not support the problem. The text is the reason."""


@dataclass(frozen=True)
class Peer:
    """A third-party kernel; `prepare(problem, tensors, scalars)` returns a Run or raises AbsentError."""

    name: str
    prepare: Callable[[Any, Tensors, Scalars], Run]
    many_launches: bool = False  # may be limited by the host, so it is also timed in a CUDA graph
    patience_s: float = 90.0  # time limit for its preparation on one problem, from imports to its first run
    note: str = ""  # a note for readers of its time


@dataclass(frozen=True)
class Context:
    """A related operator's problem on the same tensors, possibly with more work; our kernel is run on it for
    context.
    """

    operator: str
    problem: Any


def module(name: str) -> Any:
    """Import an optional package. Raises AbsentError, with what to install if it is missing."""
    try:
        return import_module(name)
    except Exception as error:  # any error: missing, or built for another machine
        package = name.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == package
        remedy = f": pip install {_INSTALLED_BY.get(package, package)}" if missing else ""
        raise AbsentError(f"{name} cannot be imported ({error}){remedy}") from error


def gpu_torch() -> Any:
    """Return torch if it has a GPU. Raises AbsentError otherwise."""
    torch = module("torch")
    if not torch.cuda.is_available():
        raise AbsentError("torch is built without CUDA, or finds no GPU")
    return torch


def to_torch(arrays: Mapping[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Copy NumPy arrays to a torch device; scalars are omitted. Raises AbsentError without torch or a GPU."""
    torch = gpu_torch() if device == "cuda" else module("torch")
    return {name: _tensor(torch, array).to(device) for name, array in arrays.items() if isinstance(array, np.ndarray)}


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().double().cpu().numpy()
    return array


def captured(run: Run) -> Callable[[], object]:
    """Return a replay of the peer's run from a CUDA graph; it must have run before. Raises torch's errors if capture
    fails.
    """
    torch = gpu_torch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    replay: Callable[[], object] = graph.replay
    return replay


def _tensor(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    dense, dtype = np.ascontiguousarray(array), DType.of(array.dtype)
    if dtype is not None and not dtype.in_numpy:  # torch does not accept it from NumPy
        return torch.from_numpy(dense.view(f"i{dtype.itemsize}")).view(getattr(torch, dtype.framework_name))
    return torch.from_numpy(dense)
