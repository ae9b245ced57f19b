"""Peers of flash_attention_backward: the gradients of torch's scaled_dot_product_attention, backend by backend."""

from collections.abc import Callable
from typing import Any

from tuner.bench.peers import Peer, Run, Scalars, Tensors
from tuner.bench.peers.attention import NOTES, gradients, scale_of, sdpa, without_lse

from ..flash_attention.peers import same_mask


def _sdpa(backend: str) -> Callable[[Any, Tensors, Scalars], Run]:
    def prepare(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
        same_mask(problem)
        without_lse(problem)
        scale = scale_of(scalars)
        return gradients(tensors, lambda inputs: sdpa(backend, problem, inputs, scale, is_causal=problem.causal))

    return prepare


PEERS = (
    Peer("torch SDPA flash, backward", _sdpa("FLASH_ATTENTION"), note=NOTES["FLASH_ATTENTION"]),
    Peer("torch SDPA cuDNN, backward", _sdpa("CUDNN_ATTENTION"), note=NOTES["CUDNN_ATTENTION"]),
    Peer("torch SDPA efficient, backward", _sdpa("EFFICIENT_ATTENTION")),
    Peer("torch SDPA math, backward", _sdpa("MATH")),
)
