"""flash_attention, backward: the gradients of Q, K and V from that of O, recomputing the probabilities from lse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from tuner.dtype import DType
from tuner.operator import Argument, Array, Arrays, Cost, Operator, Request, Role, Tolerance

from ..flash_attention import operator as forward
from ..flash_attention.operator import visible_keys
from .cases import INPUT_KINDS, gradients, with_upstream
from .problem import Problem

_QUERIES = ("batch", "seq_q", "heads", "head_dim")
_KEYS = ("batch", "seq_k", "kv_heads", "head_dim")
_LSE_GRADIENTS = ("lse_gradients", "heads", "seq_q")


def _tensor(name: str, dims: tuple[str, ...], role: Role = Role.INPUT, doc: str = "") -> Argument:
    return Argument(name, "dtype", dims, role, strided=True, doc=f"{doc}; rows 16-byte aligned".removeprefix("; "))


ARGUMENTS = (
    _tensor("dout", _QUERIES, doc="gradient of o"),
    _tensor("q", _QUERIES),
    _tensor("k", _KEYS),
    _tensor("v", _KEYS),
    _tensor("o", _QUERIES, doc="what flash_attention returned"),
    Argument("lse", DType.FP32, ("batch", "heads", "seq_q"), doc="what flash_attention returned"),
    Argument("dlse", DType.FP32, _LSE_GRADIENTS, strided="all", doc="gradient of lse; absent: zeros"),
    _tensor("dq", _QUERIES, Role.OUTPUT, "gradient of q"),
    _tensor("dk", _KEYS, Role.OUTPUT, "gradient of k, summed over the query heads that share it"),
    _tensor("dv", _KEYS, Role.OUTPUT, "gradient of v, likewise"),
    *(argument for argument in forward.ARGUMENTS if argument.role is Role.SCALAR),
)


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """q, k, v of a kind of flash_attention, with its o and lse, and dout and dlse from N(0, 1)."""
    arrays = forward.inputs(problem, rng, "one_hot" if kind == "one_hot" else "normal")
    return with_upstream(problem, arrays, rng, kind, lambda given: forward.rounded(problem, given))


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """dq, dk and dv in float64, from q, k, v and the gradients of o and lse alone."""
    return gradients(problem, arrays | forward.reference(problem, arrays), _visible(problem), rounded=False)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """From the given o and lse, with P, dS and the results rounded to the dtype, as the kernels round them."""
    return gradients(problem, arrays, _visible(problem), rounded=True)


def _visible(problem: Problem) -> Array:
    """Whether each query attends each key: bool [T, S]."""
    visible: Array = np.arange(problem.seq_k) < visible_keys(problem)[:, None]
    return visible


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    """To the rounding of P, dS and the results to the dtype."""
    limit = Tolerance(5e-3 if problem.dtype is DType.BF16 else 7e-4)
    return dict.fromkeys(("dq", "dk", "dv"), limit)


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Those of the forward pass: they differ in sizes alone."""
    return cast(tuple[Problem, ...], forward.tails(problem))


def cost(problem: Problem) -> Cost:
    """Five products of a multiply-add an element of D and an attended pair; every tensor once."""
    pairs = problem.batch * problem.heads * int(np.sum(visible_keys(problem)))
    elements = problem.head_dim * problem.batch * 4 * (problem.seq_q * problem.heads + problem.seq_k * problem.kv_heads)
    lse_bytes = problem.lse_bytes * problem.batch * problem.heads * problem.seq_q
    return Cost(flops=10 * problem.head_dim * pairs, bytes=problem.dtype.itemsize * elements + lse_bytes)


def flash_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    dlse: Any = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    layout: str = "bthd",
) -> Request:
    """The gradients of flash_attention. Returns (dq, dk, dv), each of the shape, layout and dtype of q, k and v.

    dout: the gradient of o; o and lse: what flash_attention returned for the same q, k, v and options, which mean what
    they mean there. dout, q, o: [B, T, H, D]; k, v: [B, S, HK, D], or with layout="bhtd" [B, H, T, D] and
    [B, HK, S, D]; lse: fp32 [B, H, T]. fp16 or bf16, all alike. Views are taken as they are: the last dim is contiguous
    and every row starts at a multiple of 16 bytes.

    dlse: the gradient of lse, fp32 [B, H, T], for a loss that uses it besides o, such as one over merged parts of the
    keys; of any strides, default zeros. What it holds for a query that attends no key does not count.

    dk and dv are sums over the query heads that share a head of K and V. A query that attends no key has a gradient of
    0. The same inputs give the same bits.

    Raises UsageError for an unknown layout or a scale that is not positive, and InputError for arrays that do not fit.
    """
    request = forward.flash_attention(q, k, v, causal=causal, softmax_scale=softmax_scale, layout=layout)
    arrays = {"dout": dout, "q": q, "k": k, "v": v, "o": o, "lse": lse}
    if dlse is not None:
        arrays["dlse"] = dlse
    axes = dict.fromkeys(("dout", "q", "k", "v", "o", "dq", "dk", "dv"), request.axes["q"])
    return Request(arrays, {**request.statics, "use_lse_gradient": dlse is not None}, request.scalars, axes)


OPERATOR = Operator(
    name="flash_attention_backward",
    summary="gradients of flash_attention, with exact tiles for every head_dim and the same bits every time",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=flash_attention_backward,
    folder=Path(__file__).parent,
)
