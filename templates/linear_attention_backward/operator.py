"""linear_attention_backward: the gradients of linear_attention with respect to all its inputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.spec import Argument, Cost, DType, Operator, Reduction, Request, Role, Tolerance, tolerance_of

from ..linear_attention.operator import linear_attention
from .adjoint import reference, rounded
from .cases import INPUT_KINDS, inputs, tails
from .problem import Problem

_TOKENS = ("batch", "seq_len", "heads", "head_dim")
_BETA = ("beta_heads", "beta_channels")
_STATE = ("numbers", "heads", "head_dim")
_STRIDED = ("q", "k", "v", "d_o", "dq", "dk", "dv")
_NO_TOKENS = dict.fromkeys(("batch", "seq_len", "boundaries"), 0.0)  # extents over which an output is a sum

ARGUMENTS = (
    *(Argument(name, "dtype", _TOKENS, strided=True) for name in ("q", "k", "v")),
    Argument("beta", DType.FP32, _BETA, optional="use_beta", doc="absent if β is a scalar"),
    Argument("d_o", "dtype", _TOKENS, strided=True, doc="gradient of o, which the call names do"),
    Argument(
        "cu_seqlens",
        DType.INT32,
        ("boundaries",),
        optional="varlen",
        doc="first tokens of the sequences, then T; with varlen",
    ),
    Argument(
        "initial_state",
        DType.FP32,
        ("initial_states", *_STATE),
        optional="use_initial_state",
        doc="s, then n; absent: zeros",
    ),
    Argument(
        "dht",
        DType.FP32,
        ("final_states", *_STATE),
        optional="use_final_gradient",
        doc="gradient of the final state; absent: zeros",
    ),
    *(Argument(name, "dtype", _TOKENS, Role.OUTPUT, strided=True) for name in ("dq", "dk", "dv")),
    Argument(
        "dbeta",
        DType.FP32,
        _BETA,
        Role.OUTPUT,
        optional="use_beta",
        doc="empty if β is a scalar",
        without=_NO_TOKENS,
    ),
    Argument(
        "dh0",
        DType.FP32,
        ("initial_states", *_STATE),
        Role.OUTPUT,
        optional="use_initial_state",
        doc="empty without initial_state",
        without={"seq_len": "dht"},
    ),
    Argument("beta_scalar", DType.FP32, role=Role.SCALAR, default=lambda _problem: 1.0, doc="β as a scalar"),
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in ("batch", "seq_len", "heads", "boundaries")),
)
# Names of the arguments of launches.
SCALARS = ("beta_scalar", "batch", "seq_len", "heads", "boundaries")
INPUTS = ("q", "k", "v", "beta", "d_o", "cu_seqlens", "initial_state", "dht")
OUTPUTS = ("dq", "dk", "dv", "dh0")


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    limits = dict.fromkeys(("dq", "dk", "dv", "dh0"), tolerance_of(Reduction.SUM, problem.dtype))
    return {**limits, "dbeta": tolerance_of(Reduction.CANCELLING_SUM, DType.FP32)}


def cost(problem: Problem) -> Cost:
    """σ, n, s, 1 / n and m are 10 operations; dq 1, the gradients of s and n 8, dv 1, dk 8; every tensor is
    moved once."""
    states = 2 * (2 * problem.initial_states + problem.final_states) * problem.channels
    floats = 2 * problem.beta_heads * problem.beta_channels + states + problem.boundaries
    nbytes = 7 * problem.elements * problem.dtype.itemsize + 4 * floats
    operations = 28 + 2 * (problem.decay != "scalar")  # dbeta
    return Cost(flops=operations * problem.elements, bytes=nbytes, items=problem.elements, item="token and channel")


def linear_attention_backward(
    q: Any,
    k: Any,
    v: Any,
    beta: Any | float,
    do: Any,
    dht: Any = None,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    *,
    key_floor: int = 60,
    layout: str = "bthd",
) -> Request:
    """The gradients of `linear_attention`, from its arguments and the gradients of its outputs. Returns (dq, dk, dv,
    dbeta, dh0).

    q, k, v, do: [B, T, H, D], or [B, H, T, D] with layout="bhtd"; all bf16, fp16 or fp32; any D. dq, dk and dv are
    alike. do is the gradient of o. Nothing else of the forward pass is needed but its arguments.

    beta: between 0 and 1: a number, or an fp32 array [H] or [H, D]; dbeta is [H, 1] or [H, D], summed over all tokens,
    and empty for a number. key_floor: that of the forward call; keys below -key_floor have no gradient.

    dht: fp32 [N, 2, H, D], the gradient of the final state, of s and then of n, default zeros. initial_state: that of
    the forward call; with it dh0 is its gradient, otherwise empty. If n of an initial state is 0, s must be 0 too.

    cu_seqlens: int32 [N + 1], as in the forward call. If it ends before T, the gradients of the remaining tokens are
    zeros. Without it, N = B.

    Raises UsageError for an unknown layout or values that are out of range, InputError for arrays that do not fit.
    """
    forward = linear_attention(
        q, k, v, beta, initial_state=initial_state, cu_seqlens=cu_seqlens, key_floor=key_floor, layout=layout
    )
    arrays = {**forward.arrays, "d_o": do, **({} if dht is None else {"dht": dht})}
    kept = ("decay", "use_initial_state", "varlen", "key_floor")
    statics = {name: forward.statics[name] for name in kept} | {"use_final_gradient": dht is not None}
    return Request(arrays, statics, forward.scalars, dict.fromkeys(_STRIDED, forward.axes["q"]))


OPERATOR = Operator(
    name="linear_attention_backward",
    summary="gradients of linear_attention with respect to all its inputs",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=linear_attention_backward,
    folder=Path(__file__).parent,
)
