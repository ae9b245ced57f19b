"""Peers of streaming_attention_backward: the gradients of the streaming_attention peers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tuner.bench.peers import Peer, Run, Scalars, Tensors
from tuner.bench.peers.attention import gradients, without_lse

from ..streaming_attention.peers import PEERS as FORWARD


def _backward(forward: Peer) -> Callable[[Any, Tensors, Scalars], Run]:
    def prepare(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
        without_lse(problem)
        return gradients(tensors, lambda inputs: forward.prepare(problem.forward, inputs, scalars))

    return prepare


PEERS = tuple(replace(peer, name=f"{peer.name}, backward", prepare=_backward(peer)) for peer in FORWARD)
