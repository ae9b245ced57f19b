"""Peers of flash_attention: every backend of torch's scaled_dot_product_attention, and flex_attention."""

from collections.abc import Callable
from typing import Any

from tuner.bench.peers import AbsentError, Peer, Run, Scalars, Tensors
from tuner.bench.peers.attention import COMPILES_S, NOTES, flex, scale_of, sdpa


def _sdpa(backend: str) -> Callable[[Any, Tensors, Scalars], Run]:
    def prepare(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
        same_mask(problem)
        return sdpa(backend, problem, tensors, scale_of(scalars), is_causal=problem.causal)

    return prepare


def _flex(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    same_mask(problem)
    visible = (lambda query, key: query >= key) if problem.causal else None
    return flex(problem, tensors, scale_of(scalars), visible)


def same_mask(problem: Any) -> None:
    """Raises AbsentError if torch aligns the mask differently, or lacks packed sequences or softcap."""
    for name in ("use_cu_seqlens", "use_softcap"):
        if getattr(problem, name):
            raise AbsentError(f"{name}: no torch peer implements it")
    if problem.causal and problem.seq_q != problem.seq_k:
        raise AbsentError(
            "torch aligns the causal mask at the top left, flash_attention at the bottom right: T must equal S"
        )


PEERS = (
    Peer("torch SDPA flash", _sdpa("FLASH_ATTENTION"), note=NOTES["FLASH_ATTENTION"]),
    Peer("torch SDPA cuDNN", _sdpa("CUDNN_ATTENTION"), note=NOTES["CUDNN_ATTENTION"]),
    Peer("torch SDPA efficient", _sdpa("EFFICIENT_ATTENTION")),
    Peer("torch SDPA math", _sdpa("MATH")),
    Peer("torch flex_attention", _flex, patience_s=COMPILES_S),
)
