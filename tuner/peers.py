"""Other people's kernels for our operators: optional packages, run on the same inputs, or absent with a reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tuner.dtype import DType

Tensors = Mapping[str, Any]  # torch tensors on the device, by argument
Run = Callable[[], Any]  # queues the peer's kernels on the default stream; returns the outputs that it has, by argument


class AbsentError(Exception):
    """A peer cannot take part: not installed, or not made for this problem. The text is the reason."""


@dataclass(frozen=True)
class Peer:
    """`prepare(problem, tensors, scalars)` gives what runs it, or raises AbsentError."""

    name: str
    operator: str
    prepare: Callable[[Any, Tensors, Mapping[str, float]], Run]


def of(operator: str) -> tuple[Peer, ...]:
    """The peers of an operator that this program knows of, installed or not."""
    return tuple(peer for peer in _PEERS if peer.operator == operator)


def to_torch(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of NumPy arrays on the GPU; scalars are left out. Raises AbsentError without torch, or its CUDA."""
    torch = _module("torch")
    if not torch.cuda.is_available():
        raise AbsentError("torch is built without CUDA, or finds no GPU")
    return {name: _tensor(torch, array) for name, array in arrays.items() if isinstance(array, np.ndarray)}


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tensor.detach().double().cpu().numpy()
    return found


def matmul_tflop_s(size: int = 8192) -> float:
    """The rate of a large bf16 product on random data, in 1e12 a second. Raises AbsentError where torch has no GPU."""
    torch = _module("torch")
    if not torch.cuda.is_available():
        raise AbsentError("torch finds no GPU")
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.matmul(a, b)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(2e-9 * size**3 / np.median(times[3:]))


def _tensor(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    if DType.of(array.dtype) is DType.BF16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:  # an optional package may fail in any way: missing, or built for another machine
        raise AbsentError(f"{name} cannot be imported ({error})") from error


def _sdpa(backend: str) -> Callable[[Any, Tensors, Mapping[str, float]], Run]:
    """torch's scaled_dot_product_attention, on one of its backends only."""

    def prepare(problem: Any, tensors: Tensors, scalars: Mapping[str, float]) -> Run:
        torch, attention = _module("torch"), _module("torch.nn.attention")
        _same_mask(problem)
        chosen = getattr(attention.SDPBackend, backend, None)
        if chosen is None:
            raise AbsentError(f"this torch has no backend {backend}")
        q, k, v = (tensors[name].transpose(1, 2) for name in "qkv")
        options = {"enable_gqa": True} if problem.heads != problem.kv_heads else {}

        def run() -> Any:
            with attention.sdpa_kernel(chosen):
                o = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=problem.causal, scale=scalars["softmax_scale"], **options
                )
            return {"o": o.transpose(1, 2)}

        return run

    return prepare


def _flex(problem: Any, tensors: Tensors, scalars: Mapping[str, float]) -> Run:
    torch, flex = _module("torch"), _module("torch.nn.attention.flex_attention")
    _same_mask(problem)
    q, k, v = (tensors[name].transpose(1, 2) for name in "qkv")

    def visible(_b: Any, _h: Any, query: Any, key: Any) -> Any:
        return query >= key

    shape = {"B": None, "H": None, "Q_LEN": problem.seq_q, "KV_LEN": problem.seq_k}
    mask = flex.create_block_mask(visible, **shape, device="cuda") if problem.causal else None
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    options = {"block_mask": mask, "scale": scalars["softmax_scale"], "enable_gqa": problem.heads != problem.kv_heads}
    return lambda: {"o": compiled(q, k, v, **options).transpose(1, 2)}


def _same_mask(problem: Any) -> None:
    if problem.causal and problem.seq_q != problem.seq_k:
        raise AbsentError("its causal mask is aligned at the top left, ours at the bottom right: T must equal S")


def _fla_kda(problem: Any, tensors: Tensors, scalars: Mapping[str, float]) -> Run:  # noqa: ARG001  # every peer's form
    kda = _module("fla.ops.kda")
    given = {name: tensors[name] for name in ("q", "k", "v", "g", "beta")}
    if extra := [name for name in ("A_log", "cu_seqlens", "initial_state") if tensors[name].numel()]:
        raise AbsentError(f"this program does not know how it takes {extra[0]}")
    return lambda: {"o": kda.chunk_kda(**given, scale=scalars["scale"])[0]}


_PEERS = (
    Peer("torch SDPA flash", "flash_attention", _sdpa("FLASH_ATTENTION")),
    Peer("torch SDPA cuDNN", "flash_attention", _sdpa("CUDNN_ATTENTION")),
    Peer("torch SDPA efficient", "flash_attention", _sdpa("EFFICIENT_ATTENTION")),
    Peer("torch SDPA math", "flash_attention", _sdpa("MATH")),
    Peer("torch flex_attention", "flash_attention", _flex),
    Peer("fla chunk_kda", "kda", _fla_kda),
)
