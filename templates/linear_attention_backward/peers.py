"""Peers of linear_attention_backward: the gradients of the scans that compute linear_attention."""

from typing import Any

from tuner.bench.peers import Peer, Run, Scalars, Tensors, module

from ..linear_attention.peers import PEERS as FORWARD


def _backward(forward: Peer) -> Peer:
    def prepare(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
        """The forward pass runs once, here; only the backward pass is repeated."""
        torch = module("torch")
        names = ("q", "k", "v") + ("beta",) * (problem.decay != "scalar")
        inputs = {name: tensors[name].detach().requires_grad_() for name in names}
        with torch.enable_grad():
            o = forward.prepare(problem.forward(), {**tensors, **inputs}, scalars)()["o"]

        def run() -> Any:
            gradients = torch.autograd.grad(
                o, tuple(inputs.values()), tensors["d_o"], retain_graph=True, allow_unused=True
            )
            return {f"d{name}": x for name, x in zip(names, gradients, strict=True) if x is not None}

        return run

    return Peer(f"{forward.name}, backward", prepare, many_launches=True)


PEERS = tuple(map(_backward, FORWARD))
