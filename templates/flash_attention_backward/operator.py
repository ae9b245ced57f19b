"""flash_attention, backward: the gradients of Q, K and V from that of O, with probabilities recomputed from lse."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from tuner.spec import Argument, Array, Arrays, Cost, DType, Operator, Reduction, Request, Role, Tolerance, tolerance_of

from ..flash_attention import arguments as forward_arguments
from ..flash_attention import operator as forward
from ..flash_attention.cases import optional_inputs, sequences, visibility
from ..flash_attention.problem import attended_keys, unpacked
from .cases import INPUT_KINDS, gradients, logit_gradients, with_upstream
from .problem import Problem

_QUERIES = ("batch", "seq_q", "heads", "head_dim")
_KEYS = ("batch", "seq_k", "kv_heads", "head_dim")
_OUTPUTS = (*_QUERIES[:3], "head_dim_v")
_VALUES = (*_KEYS[:3], "head_dim_v")
_LSE_GRADIENTS = ("lse_gradients", "heads", "seq_q")


def _tensor(name: str, dims: tuple[str, ...], role: Role = Role.INPUT, doc: str = "") -> Argument:
    return Argument(name, "dtype", dims, role, strided=True, doc=f"{doc}; rows 16-byte aligned".removeprefix("; "))


ARGUMENTS = (
    _tensor("dout", _OUTPUTS, doc="gradient of o"),
    _tensor("q", _QUERIES),
    _tensor("k", _KEYS),
    _tensor("v", _VALUES),
    _tensor("o", _OUTPUTS, doc="output of flash_attention"),
    Argument("lse", DType.FP32, ("batch", "heads", "seq_q"), doc="output of flash_attention"),
    Argument(
        "dlse",
        DType.FP32,
        _LSE_GRADIENTS,
        strided="all",
        optional="use_lse_gradient",
        doc="gradient of lse; absent: zeros",
    ),
    replace(_tensor("dq", _QUERIES, Role.OUTPUT, "gradient of q"), without={"seq_k": 0.0}),
    replace(
        _tensor("dk", _KEYS, Role.OUTPUT, "gradient of k, summed over the query heads that share it"),
        without={"seq_q": 0.0},
    ),
    replace(_tensor("dv", _VALUES, Role.OUTPUT, "gradient of v, likewise"), without={"seq_q": 0.0}),
    *(argument for argument in forward.ARGUMENTS if argument.role is Role.SCALAR),
)
DS_AUX = Argument(
    "ds_aux",
    DType.FP32,
    ("s_aux_heads",),
    Role.OUTPUT,
    optional="use_s_aux",
    doc="gradient of s_aux; empty without s_aux",
    without={"batch": 0.0, "seq_q": 0.0},
)
OPTIONAL = forward_arguments.OPTIONAL


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """q, k, v of an input kind of flash_attention, with its o and lse, and dout and dlse from N(0, 1)."""
    arrays = optional_inputs(problem, rng, "one_hot" if kind == "one_hot" else "normal")
    return with_upstream(
        problem,
        arrays,
        rng,
        kind,
        lambda forward_arrays: forward.rounded(problem, forward_arrays),
        lambda: _attended(problem),
    )


def _attended(problem: Problem) -> Array:
    """Number of keys each query attends, [T]; packed sequences count as if their lengths were equal."""
    return np.resize(attended_keys(unpacked(problem)), problem.seq_q)


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """dq, dk, dv and ds_aux in float64, from q, k, v, s_aux and the gradients of o and lse only."""
    return _gradients(problem, arrays | forward.reference(problem, arrays), rounded=False)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The gradients for the o and lse in `arrays`, with P, dS and the results rounded to the dtype, as the kernels
    round them."""
    return _gradients(problem, arrays, rounded=True)


def _gradients(problem: Problem, arrays: Arrays, *, rounded: bool) -> Arrays:
    logit_gradient = {"ds_aux": logit_gradients(problem, arrays, rounded=rounded)}
    softcap = arrays["softcap"] if problem.use_softcap else 0.0
    if not problem.use_cu_seqlens:
        return gradients(problem, arrays, visibility(problem), rounded=rounded, softcap=softcap) | logit_gradient
    totals = {f"d{name}": np.zeros(arrays[name].shape) for name in "qkv"}
    for sequence, queries, keys in sequences(problem, arrays):
        sequence_arrays = {name: arrays[name][:, queries] for name in ("q", "dout", "o")}
        sequence_arrays |= {name: arrays[name][:, keys] for name in ("k", "v")}
        sequence_arrays |= {name: arrays[name][:, :, queries] for name in ("lse", "dlse")}
        sequence_gradients = gradients(
            sequence, arrays | sequence_arrays, visibility(cast(Problem, sequence)), rounded=rounded, softcap=softcap
        )
        totals["dq"][:, queries], totals["dk"][:, keys], totals["dv"][:, keys] = (
            sequence_gradients[f"d{name}"] for name in "qkv"
        )
    return totals | logit_gradient


def tolerance(problem: Any, outputs: tuple[str, ...] = ("dq", "dk", "dv")) -> Mapping[str, Tolerance]:
    return dict.fromkeys(outputs, tolerance_of(Reduction.SOFTMAX_GRADIENT, problem.dtype))


def tails(problem: Problem) -> tuple[Problem, ...]:
    """The edge cases of the forward pass: problems differ only in sizes."""
    return cast(tuple[Problem, ...], forward.tails(problem))


def cost(problem: Problem) -> Cost:
    """Per attended pair, three products with D elements (S, dQ and dK) and two with DV elements; every tensor is moved
    once. Packed sequences count as if their lengths were equal."""
    equal = unpacked(problem)
    pairs = equal.batch * equal.heads * int(np.sum(attended_keys(equal)))
    D, DV, rows = problem.head_dim, problem.head_dim_v, problem.seq_q * problem.heads + problem.seq_k * problem.kv_heads
    elements = 2 * (D + DV) * problem.batch * rows
    lse_bytes = problem.lse_bytes * problem.batch * problem.heads * problem.seq_q
    nbytes = problem.dtype.itemsize * elements + lse_bytes + 8 * problem.boundaries + 8 * problem.s_aux_heads
    return Cost(flops=2 * (3 * D + 2 * DV) * pairs, bytes=nbytes)


def flash_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    s_aux: Any = None,
    *,
    dlse: Any = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
    window_left: int = -1,
    window_right: int = -1,
    layout: str = "bthd",
) -> Request:
    """The gradients of flash_attention. Returns (dq, dk, dv, ds_aux), the first three with the shapes of q, k and v.

    dout: the gradient of o; o and lse: the outputs of flash_attention for the same q, k, v and options, which have the
    same meaning as there. q: [B, T, H, D]; dout, o: [B, T, H, DV]; k: [B, S, HK, D]; v: [B, S, HK, DV], or with
    layout="bhtd" [B, H, T, D] and so on; lse: fp32 [B, H, T]. All are fp16, bf16 or fp32. Strided views are used
    without a copy: the last dim must be contiguous, and every row must start at a multiple of 16 bytes.

    dlse: the gradient of lse, fp32 [B, H, T], for a loss that uses it besides o, such as one over merged parts of the
    keys; any strides, default zeros. Its values for queries that attend no key are ignored.

    s_aux: as passed to flash_attention; its gradient is ds_aux, fp32 [H], which is empty without s_aux.

    softcap, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, window_left, window_right: as passed to flash_attention.
    Gradients of rows outside all sequences are not written.

    dk and dv are sums over the query heads that share a head of K and V. A query that attends no key has a gradient of
    0. Results are deterministic: the same inputs give bitwise equal gradients.

    Raises UsageError for an unknown layout or a scale that is not positive, and InputError for arrays that do not fit.
    """
    options: dict[str, Any] = {"causal": causal, "softmax_scale": softmax_scale, "softcap": softcap}
    options |= {"max_seqlen_q": max_seqlen_q, "window_left": window_left, "window_right": window_right}
    request = forward.flash_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, s_aux, layout=layout, **options)
    arrays = {"dout": dout, **request.arrays, "o": o, "lse": lse}
    if dlse is not None:
        arrays["dlse"] = dlse
    axes = dict.fromkeys(("dout", "q", "k", "v", "o", "dq", "dk", "dv"), request.axes["q"])
    return Request(arrays, {**request.statics, "use_lse_gradient": dlse is not None}, request.scalars, axes)


OPERATOR = Operator(
    name="flash_attention_backward",
    summary="gradients of flash_attention, exact for every head_dim and head_dim_v, bitwise deterministic",
    problem=Problem,
    arguments=(*ARGUMENTS, DS_AUX, *OPTIONAL),
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=lambda problem: tolerance(problem, ("dq", "dk", "dv", "ds_aux")),
    cost=cost,
    tails=tails,
    call=flash_attention_backward,
    folder=Path(__file__).parent,
)
