"""linear_attention, forward: o = q s / n, where s and n are sums of σ(k) v and σ(k) over the past that decay by β per
token."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Argument, Cost, DType, Gradient, Operator, Reduction, Request, Role, Tolerance, tolerance_of

from .cases import INPUT_KINDS, inputs, tails
from .problem import Problem
from .recurrence import reference, rounded

LAYOUTS: Mapping[str, tuple[int, ...]] = {"bthd": (0, 1, 2, 3), "bhtd": (0, 2, 1, 3)}
_TOKENS = ("batch", "seq_len", "heads", "head_dim")
_STATE = ("numbers", "heads", "head_dim")

ARGUMENTS = (
    Argument("q", "dtype", _TOKENS, strided=True),
    Argument("k", "dtype", _TOKENS, strided=True),
    Argument("v", "dtype", _TOKENS, strided=True),
    Argument("beta", DType.FP32, ("beta_heads", "beta_channels"), optional="use_beta", doc="absent if β is a scalar"),
    Argument(
        "initial_state",
        DType.FP32,
        ("initial_states", *_STATE),
        optional="use_initial_state",
        doc="s, then n; absent: zeros",
    ),
    Argument(
        "cu_seqlens",
        DType.INT32,
        ("boundaries",),
        optional="varlen",
        doc="first tokens of the sequences, then T; with varlen",
    ),
    Argument("o", "dtype", _TOKENS, Role.OUTPUT, strided=True),
    Argument(
        "final_state",
        DType.FP32,
        ("final_states", *_STATE),
        Role.OUTPUT,
        optional="output_final_state",
        doc="empty unless output_final_state is set",
        without={"seq_len": "initial_state"},
    ),
    Argument(
        "beta_scalar", DType.FP32, role=Role.SCALAR, default=lambda problem: problem.beta_bound, doc="β as a scalar"
    ),
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in ("batch", "seq_len", "heads", "boundaries")),
)
SCALARS = tuple(argument.name for argument in ARGUMENTS if argument.role is Role.SCALAR)


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    return dict.fromkeys(("o", "final_state"), tolerance_of(Reduction.SUM, problem.dtype))


def cost(problem: Problem) -> Cost:
    """σ is 3 operations, n 2, s 3 and o 2; every tensor is moved once."""
    states = 2 * (problem.initial_states + problem.final_states) * problem.channels
    floats = problem.beta_heads * problem.beta_channels + states + problem.boundaries
    nbytes = 4 * problem.elements * problem.dtype.itemsize + 4 * floats
    return Cost(flops=10 * problem.elements, bytes=nbytes, items=problem.elements, item="token and channel")


def linear_attention(
    q: Any,
    k: Any,
    v: Any,
    beta: Any | float,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    *,
    output_final_state: bool = False,
    beta_bound: float = 1.0,
    key_floor: int = 60,
    layout: str = "bthd",
) -> Request:
    """Linear attention with a state of two numbers per channel. Returns (o, final_state).

    For every channel: n_t = β n_{t-1} + σ(k_t), s_t = β s_{t-1} + σ(k_t) v_t, o_t = q_t s_t / n_t, in fp32.

    q, k, v: [B, T, H, D], or [B, H, T, D] with layout="bhtd"; all bf16, fp16 or fp32; any D. Strided views are used
    without a copy if the last dim is contiguous and every row is as aligned as those of a dense tensor.

    beta: between 0 and 1: a number, or an fp32 array [H] or [H, D]. beta_bound: an upper bound of beta; below 1 it
    enables kernels that reread some of the past instead of waiting for it. A violated bound costs time, not
    correctness. key_floor: keys below -key_floor are clamped to -key_floor, which keeps n above zero.

    initial_state: fp32 [N, 2, H, D], s and then n, default zeros. output_final_state: whether final_state is returned,
    otherwise it is empty; passed as initial_state, it continues the sequences.

    cu_seqlens: int32 [N + 1], ascending from 0 to T: N packed sequences in one row of tokens (B = 1). If it ends before
    T, o of the remaining tokens is undefined. Without it, N = B. o has the shape, layout and dtype of q.

    Raises UsageError for an unknown layout or values that are out of range, InputError for arrays that do not fit.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r}: linear_attention supports {', '.join(LAYOUTS)}")
    arrays = {"q": q, "k": k, "v": v} | _beta_array(beta)
    optional = {"initial_state": initial_state, "cu_seqlens": cu_seqlens}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    statics = {
        "decay": ("scalar", "head", "channel")[_dims(beta)],
        "use_initial_state": initial_state is not None,
        "output_final_state": output_final_state,
        "varlen": cu_seqlens is not None,
        "beta_bound": beta_bound,
        "key_floor": key_floor,
    }
    scalars = {} if _dims(beta) else {"beta_scalar": _number(beta, beta_bound)}
    return Request(arrays, statics, scalars, dict.fromkeys(("q", "k", "v", "o"), LAYOUTS[layout]))


def _dims(beta: Any) -> int:
    dims = int(getattr(beta, "ndim", 0))
    if dims > 2:
        raise UsageError(f"beta has {dims} dims: pass a number, or an array [H] or [H, D]")
    return dims


def _beta_array(beta: Any) -> dict[str, Any]:
    dims = _dims(beta)
    return {} if dims == 0 else {"beta": beta[:, None] if dims == 1 else beta}


def _number(beta: Any, bound: float) -> float:
    try:
        value = float(beta + 0)  # + 0: rejects strings
    except TypeError as error:
        raise UsageError(f"beta is a {type(beta).__name__}: pass a number, or an fp32 array [H] or [H, D]") from error
    if not 0 <= np.float32(value) <= np.float32(bound):  # kernels and tensors of callers hold it in fp32
        raise UsageError(f"beta {value}: must be between 0 and beta_bound, {bound}")
    return value


OPERATOR = Operator(
    name="linear_attention",
    summary="a weighted mean of the past in each channel, with weights σ(k) that decay by β per token: q s / n",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=linear_attention,
    gradient=Gradient(
        "linear_attention_backward",
        upstream={"final_state": "dht"},
        gradients={"initial_state": "dh0"},
        no_gradient={
            "output_final_state": "implied by the gradient of the state",
            "beta_bound": "it chooses the forward kernel",
        },
    ),
    folder=Path(__file__).parent,
)
