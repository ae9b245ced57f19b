"""kda_backward: the gradients of Kimi Delta Attention with respect to all its inputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.spec import Argument, Cost, DType, Operator, Reduction, Request, Role, Tolerance, tolerance_of

from ..kda.arguments import (
    BETAS,
    GATES,
    KEYS,
    ROWS,
    SCALARS,
    SEQUENCES,
    STATE,
    TOKENS,
    VALUES,
    axes,
    gate,
    scalars,
)
from ..kda.cases import SAFE_GATE
from .adjoint import reference
from .cases import INPUT_KINDS, inputs, tails
from .gate_gradients import state_bytes
from .problem import Problem
from .rounding import rounded

_SIZES = ("batch", "seq_len", "heads", "value_heads", "boundaries")
_STRIDED = ("q", "k", "v", "g", "d_o", "dq", "dk", "dv", "dg")
_NO_TOKENS = dict.fromkeys(("batch", "seq_len", "boundaries"), 0.0)  # extents over which an output is a sum

ARGUMENTS = (
    *TOKENS,
    Argument("d_o", "dtype", VALUES, strided=True, doc=f"gradient of o, which the call names do; {ROWS}"),
    *SEQUENCES,
    Argument(
        "dht",
        DType.FP32,
        ("final_states", *STATE),
        optional="use_final_gradient",
        doc="gradient of the final state; absent: zeros",
    ),
    Argument("dq", "dtype", KEYS, Role.OUTPUT, strided=True, doc=ROWS),
    Argument("dk", "dtype", KEYS, Role.OUTPUT, strided=True, doc=ROWS),
    Argument("dv", "dtype", VALUES, Role.OUTPUT, strided=True, doc=ROWS),
    Argument("dg", "gate_dtype", GATES, Role.OUTPUT, strided=True, doc=ROWS),
    Argument("dbeta", "beta_dtype", BETAS, Role.OUTPUT, strided="all"),
    Argument(
        "dh0",
        DType.FP32,
        ("initial_states", *STATE),
        Role.OUTPUT,
        optional="use_initial_state",
        doc="empty without initial_state",
        without={"seq_len": "dht"},
    ),
    Argument(
        "dA_log",
        DType.FP32,
        ("gate_heads",),
        Role.OUTPUT,
        optional="use_gate_in_kernel",
        doc="empty without A_log",
        without=_NO_TOKENS,
    ),
    Argument(
        "ddt_bias",
        DType.FP32,
        ("bias_heads", "key_dim"),
        Role.OUTPUT,
        optional="use_dt_bias",
        doc="empty without dt_bias",
        without=_NO_TOKENS,
    ),
    *SCALARS,
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in _SIZES),
)


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    gradients = ("dq", "dk", "dv", "dg", "dbeta", "dh0")
    limit = dict.fromkeys(gradients, tolerance_of(Reduction.RECURRENCE, problem.operands))
    return limit | dict.fromkeys(("dA_log", "ddt_bias"), tolerance_of(Reduction.RECURRENCE_SUM, problem.operands))


def cost(problem: Problem) -> Cost:
    """Nine products with a state per token, two operations each; every tensor is moved once.

    Two recompute the state; dq, dbeta and dv, and dg need one each, dk two, the gradient of the state two.
    """
    K, V, element = problem.key_dim, problem.value_dim, problem.dtype.itemsize
    tokens = problem.batch * problem.seq_len
    # bytes per row of a value head
    row = 3 * element * V + 2 * problem.gate_dtype.itemsize * K + 2 * problem.beta_dtype.itemsize
    nbytes = tokens * (problem.value_heads * row + problem.heads * element * 4 * K) + state_bytes(problem)
    return Cost(flops=18 * K * V * tokens * problem.value_heads, bytes=nbytes)


def kda_backward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    do: Any,
    dht: Any = None,
    scale: float | None = None,
    initial_state: Any = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    cu_seqlens: Any = None,
    *,
    A_log: Any = None,
    dt_bias: Any = None,
    state_v_first: bool = False,
    precision: str = "dtype",
    layout: str = "bthd",
) -> Request:
    """The gradients of `kda`, from its arguments and the gradients of its outputs. Returns (dq, dk, dv, dg, dbeta, dh0,
    dA_log, ddt_bias).

    q, k: [B, T, H, K]; v, do: [B, T, HV, V]; g: [B, T, HV, K], the natural logarithm of the decay, <= 0; beta: [B, T,
    HV]. H divides HV: dq and dk are sums over the value heads that share a head, added in a fixed order. With
    layout="bhtd" these and their gradients are [B, H, T, ·], and beta is [B, HV, T]. K and V are 16 to 256 in steps of
    16; q, k, v and do are all bf16, fp16 or fp32. Strided views are used without a copy: the last dim must be
    contiguous, and every row must start at a multiple of 16 bytes; beta may have any strides.

    do: the gradient of o. dht: the gradient of the final state, fp32 [B, HV, K, V], default zeros. scale: that of the
    forward call, default K ** -0.5. initial_state: fp32 [B, HV, K, V], default zeros; with it, dh0 is its gradient,
    otherwise empty. state_v_first: these states and gradients are [B, HV, V, K]. use_qk_l2norm_in_kernel,
    use_beta_sigmoid_in_kernel, allow_neg_eigval: as in the forward call: dq, dk and dbeta are then the gradients of q
    and k before their normalization, and of beta before its sigmoid. use_gate_in_kernel, lower_bound, A_log (fp32
    [HV]), dt_bias (fp32 [HV, K] or [HV · K]): as in the forward call; dg is then the gradient of g before its gate, and
    dA_log [HV] and ddt_bias [HV, K] are sums over all tokens, otherwise empty. precision: the precision of the operands
    of matrix products, as in the forward call: "dtype" is bf16 for 16-bit tensors and fp32 for fp32 tensors; "tf32" and
    "fp32" are allowed for any. safe_gate: guarantees g >= -5, which saves a check. cu_seqlens: [N + 1], int64 or int32,
    ascending from 0 to T: sequences of any lengths packed into a batch of 1; states then have N in place of B.

    Raises UsageError for an unknown layout, an invalid scale or lower_bound, or A_log without its gate, and InputError
    for arrays that do not fit.
    """
    optional = {
        **gate(A_log, dt_bias, use_gate_in_kernel),
        "cu_seqlens": cu_seqlens,
        "initial_state": initial_state,
        "dht": dht,
    }
    arrays = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "d_o": do}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    statics: dict[str, bool | str] = {
        "use_cu_seqlens": cu_seqlens is not None,
        "use_initial_state": initial_state is not None,
        "use_final_gradient": dht is not None,
        "state_v_first": state_v_first,
        "precision": precision,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_gate_in_kernel": use_gate_in_kernel,
        "use_dt_bias": dt_bias is not None,
        "use_lower_bound": lower_bound is not None,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
        "safe_gate": safe_gate or (lower_bound is not None and lower_bound >= SAFE_GATE),
    }
    strided = axes("kda_backward", layout, _STRIDED, ("beta", "dbeta"))
    return Request(arrays, statics, scalars(scale, lower_bound), strided)


OPERATOR = Operator(
    name="kda_backward",
    summary="gradients of Kimi Delta Attention with respect to all its inputs",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=kda_backward,
    folder=Path(__file__).parent,
)
