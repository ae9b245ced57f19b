"""Peers of flash_attention_backward: the gradients of torch's scaled_dot_product_attention, backend by backend."""

from collections.abc import Callable
from typing import Any

from tuner.peers.attention import scale_of, sdpa
from tuner.peers.base import AbsentError, Peer, Run, Scalars, Tensors, module
from tuner.peers.flash_attention import same_mask


def _sdpa(backend: str) -> Callable[[Any, Tensors, Scalars], Run]:
    def prepare(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
        same_mask(problem)
        if problem.use_lse_gradient:
            raise AbsentError("it returns no lse, and so takes no gradient of it")
        return _gradients(module("torch"), problem, tensors, scale_of(scalars), backend)

    return prepare


def _gradients(torch: Any, problem: Any, tensors: Tensors, scale: float, backend: str) -> Run:
    """The forward pass runs once, here; what is run again is the backward pass alone."""
    given = {name: tensors[name].detach().requires_grad_() for name in "qkv"}
    with torch.enable_grad():
        o = sdpa(backend, problem, given, scale, is_causal=problem.causal)()["o"]

    def run() -> Any:
        found = torch.autograd.grad(o, tuple(given.values()), tensors["dout"], retain_graph=True)
        return dict(zip(("dq", "dk", "dv"), found, strict=True))

    return run


PEERS = (
    Peer("torch SDPA flash, backward", _sdpa("FLASH_ATTENTION")),
    Peer("torch SDPA cuDNN, backward", _sdpa("CUDNN_ATTENTION")),
    Peer("torch SDPA efficient, backward", _sdpa("EFFICIENT_ATTENTION")),
    Peer("torch SDPA math, backward", _sdpa("MATH")),
)
