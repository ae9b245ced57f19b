"""streaming_attention, forward: a query attends the first keys (sinks) and the last keys up to its own (a window)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Argument, Cost, DType, Gradient, Operator, Request, Role

from ..flash_attention import operator as dense
from .cases import INPUT_KINDS, inputs, reference, rounded, tails
from .problem import Problem, attended_keys

_CACHED = dict.fromkeys(("k", "v"), ("batch", "slots", "kv_heads", "head_dim"))
_LENGTHS = Argument(
    "cache_seqlens",
    DType.INT32,
    ("sequences",),
    optional="ragged",
    doc="number of positions of each sequence, if ragged",
)
_SCALARS = ("slots", "window", "sinks")

ARGUMENTS = (
    *(replace(argument, dims=_CACHED.get(argument.name, argument.dims)) for argument in dense.ARGUMENTS),
    _LENGTHS,
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in _SCALARS),
)


def cost(problem: Problem) -> Cost:
    """Two multiply-adds per element of D and attended pair; every tensor is moved once, of K and V only the attended
    keys.

    A ragged batch counts as if the cache of each sequence were full.
    """
    return cost_of(problem, problem.sequences)


def cost_of(problem: Any, integers: int) -> Cost:
    """The cost if kernels read `integers` int32 of lengths and tables."""
    pairs = problem.batch * problem.heads * int(np.sum(attended_keys(problem)))
    keys = min(problem.seq_k, problem.reach)
    elements = problem.batch * problem.head_dim * (problem.seq_q * problem.heads + keys * problem.kv_heads)
    rows = problem.batch * problem.heads * problem.seq_q
    nbytes = 2 * problem.dtype.itemsize * elements + 4 * (rows + integers)
    return Cost(flops=4 * problem.head_dim * pairs, bytes=nbytes, items=rows, item="query and head")


def streaming_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    window: int,
    sinks: int = 0,
    seq_k: int | None = None,
    cache_seqlens: Any = None,
    rolling: bool = False,
    softmax_scale: float | None = None,
    layout: str = "bthd",
) -> Request:
    """Attention to the first `sinks` keys and the last `window` ones. Returns (o, lse).

    The query at position p attends the keys j <= p with j < sinks or p - j < window: the window counts p itself, and no
    key counts twice. sinks=0 is a sliding window, window >= S causal attention. Positions count from the first key;
    query i of T is at p = i + S - T, so that the last query attends the last key. If p is negative, o = 0 and lse =
    -inf.

    q: [B, T, H, D]; k, v: [B, S, HK, D], where HK divides H (grouped queries: query head h reads head h · HK // H).
    With layout="bhtd": [B, H, T, D] and [B, HK, S, D]. fp16, bf16 or fp32, the same for all three; D is 8 to 256 in
    steps of 8. Strided views are used without a copy: the last dim must be contiguous, and every row must start at a
    multiple of 16 bytes. softmax_scale: positive, default D ** -0.5.

    A rolling cache is selected by `seq_k`, the number of positions so far, including those of q. Then k and v hold R
    slots instead of S keys: position j is in slot j if j < R, otherwise in sinks + (j - sinks) mod (R - sinks), where R
    is at least the smaller of S and sinks + window + T - 1. The caller stores the keys of q there first. Rotary
    embeddings must be applied to keys before they are stored.

    A ragged batch is selected by `cache_seqlens`, int32 [B]: the number of positions of each sequence so far, including
    those of q. k and v then have slots for the longest, or, with rolling=True, R >= sinks + window + T - 1 slots each.
    The kernels read the lengths on the device, so that other lengths need no new call signature. A negative length
    counts as 0; without rolling, one above the number of slots counts as that.

    o has the shape, layout and dtype of q; lse is fp32 [B, H, T], the natural logarithm of the sum of the
    exponentials.

    Raises UsageError for an unknown layout, a scale or seq_k that is not positive, or both seq_k and cache_seqlens;
    InputError for arrays that do not fit.
    """
    request = dense.flash_attention(q, k, v, softmax_scale=softmax_scale, layout=layout)
    if seq_k is not None and seq_k < 1:
        raise UsageError(f"seq_k {seq_k}: pass the number of positions so far, including those of q")
    if seq_k is not None and cache_seqlens is not None:
        raise UsageError(f"seq_k {seq_k} and cache_seqlens: pass one of them")
    if rolling and cache_seqlens is None and seq_k is None:
        raise UsageError("rolling=True: pass seq_k or cache_seqlens, the number of positions so far")
    statics: dict[str, Any] = {"window": window, "sinks": sinks}
    if cache_seqlens is not None:
        arrays = {**request.arrays, "cache_seqlens": cache_seqlens}
        return replace(request, arrays=arrays, statics={**statics, "rolling": rolling, "ragged": True})
    if seq_k is not None:
        statics |= {"rolling": True, "seq_k": seq_k}
    return replace(request, statics=statics)


OPERATOR = Operator(
    name="streaming_attention",
    summary="attention to the first keys and a sliding window, in time and memory linear in the length",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=dense.tolerance,
    cost=cost,
    tails=tails,
    call=streaming_attention,
    gradient=Gradient(
        "streaming_attention_backward",
        upstream={"o": "dout"},
        unsupported=dict.fromkeys(("seq_k", "cache_seqlens", "rolling"), "cached keys were computed by earlier calls"),
    ),
    folder=Path(__file__).parent,
)
