"""Peers of streaming_attention: flex_attention with a BlockMask of sinks and window, and SDPA with a dense mask."""

from typing import Any

from tuner.bench.peers import AbsentError, Context, Peer, Run, Scalars, Tensors, module
from tuner.bench.peers.attention import COMPILES_S, Visible, dense_mask, flex, scale_of, sdpa

from ..flash_attention.problem import Problem as Dense
from .problem import Problem


def _flex(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    return flex(problem, tensors, scale_of(scalars), _visible(problem))


def _masked(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """Uses the backend that supports any mask and never materializes all scores."""
    visible = _visible(problem)
    dense_mask(problem.seq_q * problem.seq_k)
    torch, device = module("torch"), tensors["q"].device
    query = torch.arange(problem.seq_q, device=device)[:, None]
    key = torch.arange(problem.seq_k, device=device)[None, :]
    backend = "EFFICIENT_ATTENTION" if tensors["q"].is_cuda else "MATH"
    return sdpa(backend, problem, tensors, scale_of(scalars), attn_mask=visible(query, key))


def _visible(problem: Any) -> Visible:
    """The mask: query i is at position i + S - T, and sees sinks and the window up to itself."""
    if problem.rolling:
        raise AbsentError("the peer supports no rolling cache")
    if problem.ragged:
        raise AbsentError("the mask of the peer does not support different lengths")
    if problem.seq_q > problem.seq_k:
        raise AbsentError("torch's softmax over no keys is NaN: T may not exceed S")
    shift, window, sinks = problem.seq_k - problem.seq_q, problem.window, problem.sinks

    def visible(query: Any, key: Any) -> Any:
        position = query + shift
        return (key <= position) & ((key < sinks) | (position - key < window))

    return visible


def context(problem: Problem) -> Context | None:
    """Dense attention of the same queries and keys."""
    if problem.rolling or problem.ragged:
        return None
    shared = ("head_dim", "dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k")
    return Context("flash_attention", Dense(causal=True, **{name: getattr(problem, name) for name in shared}))


PEERS = (
    Peer("torch flex_attention, BlockMask", _flex, patience_s=COMPILES_S),
    Peer("torch SDPA, dense mask", _masked),
)
