"""streaming_attention, backward: the gradients of Q, K and V from that of O, with probabilities recomputed from lse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.spec import Argument, Cost, DType, Operator, Request, Role

from ..flash_attention_backward import operator as dense
from ..streaming_attention.problem import attended_keys
from .cases import INPUT_KINDS, inputs, reference, rounded, tails
from .problem import Problem

_DOCS = {"o": "output of streaming_attention; rows 16-byte aligned", "lse": "output of streaming_attention"}
ARGUMENTS = (
    *(replace(argument, doc=_DOCS.get(argument.name, argument.doc)) for argument in dense.ARGUMENTS),
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in ("window", "sinks")),
)


def cost(problem: Problem) -> Cost:
    """Five products of one multiply-add per element of D and attended pair; every tensor is moved once.

    Of K and V only the attended keys are read; dk and dv are written completely.
    """
    pairs = problem.batch * problem.heads * int(np.sum(attended_keys(problem.forward)))
    keys = min(problem.seq_k, problem.forward.reach)
    key_rows = 2 * (keys + problem.seq_k) * problem.kv_heads
    elements = problem.batch * problem.head_dim * (4 * problem.seq_q * problem.heads + key_rows)
    lse_bytes = problem.lse_bytes * problem.batch * problem.heads * problem.seq_q
    return Cost(flops=10 * problem.head_dim * pairs, bytes=problem.dtype.itemsize * elements + lse_bytes)


def streaming_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    window: int,
    sinks: int = 0,
    dlse: Any = None,
    softmax_scale: float | None = None,
    layout: str = "bthd",
) -> Request:
    """The gradients of streaming_attention. Returns (dq, dk, dv), each of the shape, layout and dtype of q, k and v.

    dout: the gradient of o; o and lse: the outputs of streaming_attention for the same q, k, v and options, which have
    the same meaning as there. dout, q, o: [B, T, H, D]; k, v: [B, S, HK, D], every key in its own slot, or with
    layout="bhtd" [B, H, T, D] and [B, HK, S, D]; lse: fp32 [B, H, T]. All are fp16, bf16 or fp32. Strided views are
    used without a copy: the last dim must be contiguous, and every row must start at a multiple of 16 bytes.

    dlse: the gradient of lse, fp32 [B, H, T], for a loss that uses it besides o; any strides, default zeros. Its values
    for queries that attend no key are ignored.

    dk and dv are sums over the query heads that share a head of K and V. A query that attends no key has a gradient of
    0, as has a key that no query attends. Results are deterministic: the same inputs give bitwise equal gradients.

    Raises UsageError for an unknown layout or a scale that is not positive, and InputError for arrays that do not fit.
    """
    request = dense.flash_attention_backward(
        dout, q, k, v, o, lse, dlse=dlse, softmax_scale=softmax_scale, layout=layout
    )
    statics = {"window": window, "sinks": sinks, "use_lse_gradient": dlse is not None}
    return replace(request, statics=statics)


OPERATOR = Operator(
    name="streaming_attention_backward",
    summary="gradients of streaming_attention, in time linear in the length, bitwise deterministic",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=dense.tolerance,
    cost=cost,
    tails=tails,
    call=streaming_attention_backward,
    folder=Path(__file__).parent,
)
