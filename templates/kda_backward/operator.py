"""kda_backward: the gradients of Kimi Delta Attention with respect to all that it was given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.dtype import DType
from tuner.errors import UsageError
from tuner.operator import Argument, Cost, Operator, Request, Role, Tolerance

from ..kda.operator import LAYOUTS
from .adjoint import reference
from .cases import INPUT_KINDS, inputs, tails
from .optional import state_bytes
from .problem import Problem
from .rounding import rounded

_KEYS = ("batch", "seq_len", "heads", "key_dim")
_GATES = ("batch", "seq_len", "value_heads", "key_dim")
_VALUES = ("batch", "seq_len", "value_heads", "value_dim")
_BETAS = ("batch", "seq_len", "value_heads")
_STATE = ("value_heads", "key_dim", "value_dim")
_ROWS = "rows 16-byte aligned"
_STRIDED = ("q", "k", "v", "g", "d_o", "dq", "dk", "dv", "dg")

ARGUMENTS = (
    Argument("q", "dtype", _KEYS, strided=True, doc=_ROWS),
    Argument("k", "dtype", _KEYS, strided=True, doc=_ROWS),
    Argument("v", "dtype", _VALUES, strided=True, doc=_ROWS),
    Argument("g", "gate_dtype", _GATES, strided=True, doc=f"natural logarithm of the decay, <= 0; {_ROWS}"),
    Argument("beta", "beta_dtype", _BETAS, doc="how much of the error is written"),
    Argument("d_o", "dtype", _VALUES, strided=True, doc=f"gradient of o, which the call names do; {_ROWS}"),
    Argument("cu_seqlens", "index_dtype", ("boundaries",), doc="where each sequence begins, and the last ends"),
    Argument("initial_state", DType.FP32, ("initial_states", *_STATE), doc="absent: zeros"),
    Argument("dht", DType.FP32, ("final_states", *_STATE), doc="gradient of the final state; absent: zeros"),
    Argument("dq", "dtype", _KEYS, Role.OUTPUT, strided=True, doc=_ROWS),
    Argument("dk", "dtype", _KEYS, Role.OUTPUT, strided=True, doc=_ROWS),
    Argument("dv", "dtype", _VALUES, Role.OUTPUT, strided=True, doc=_ROWS),
    Argument("dg", "gate_dtype", _GATES, Role.OUTPUT, strided=True, doc=_ROWS),
    Argument("dbeta", "beta_dtype", _BETAS, Role.OUTPUT),
    Argument("dh0", DType.FP32, ("initial_states", *_STATE), Role.OUTPUT, doc="empty without initial_state"),
    Argument(
        "scale",
        DType.FP32,
        role=Role.SCALAR,
        default=lambda problem: float(problem.key_dim**-0.5),
        doc="of q; default key_dim ** -0.5",
    ),
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in ("seq_len", "heads", "value_heads", "boundaries")),
)


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    """To the rounding of operands and outputs; with fp32 tensors, to that of fp32 sums and of the ex2 unit.

    A gradient rounded to 16 bits is no better than that however exact its sum was: `rounded` knows, and the limit
    follows it.
    """
    limit = Tolerance(1e-5 if problem.dtype is DType.FP32 else 5e-3)
    return dict.fromkeys(("dq", "dk", "dv", "dg", "dbeta", "dh0"), limit)


def cost(problem: Problem) -> Cost:
    """Nine products with a state a token, two operations each; every tensor once.

    Two make the state again; dq, dbeta and dv, dg take one each, dk two, the gradient of the state two.
    """
    K, V, element = problem.key_dim, problem.value_dim, problem.dtype.itemsize
    tokens = problem.batch * problem.seq_len
    row = 3 * element * V + 2 * problem.gate_dtype.itemsize * K + 2 * problem.beta_dtype.itemsize  # of a value head
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
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    cu_seqlens: Any = None,
    *,
    layout: str = "bthd",
) -> Request:
    """The gradients of `kda`, from its arguments and those of its outputs. Returns (dq, dk, dv, dg, dbeta, dh0).

    q, k: [B, T, H, K]; v, do: [B, T, HV, V]; g: [B, T, HV, K], the natural logarithm of the decay, <= 0; beta:
    [B, T, HV]. H divides HV: dq and dk are sums over the value heads that share a head, added in one order. With
    layout="bhtd" these and their gradients are [B, H, T, ·], and beta stays [B, T, HV]. K and V are 16 to 256 in steps
    of 16; bf16, fp16 or fp32, q, k, v and do alike. Views are taken as they are: the last dim is contiguous and every
    row starts at a multiple of 16 bytes.

    do: the gradient of o. dht: fp32 [B, HV, K, V], of the final state, default zeros. scale: that of the forward call,
    default K ** -0.5. initial_state: fp32 [B, HV, K, V], default zeros; with it, dh0 is its gradient, otherwise empty.
    use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval: as in the forward call: dq, dk and dbeta are
    then of q and k before their normalisation, and of beta before its sigmoid.
    safe_gate: g >= -5 is promised, which saves a check. cu_seqlens: [N + 1], int64 or int32, ascending from 0 to T:
    sequences of any lengths packed into a batch of 1; then N takes B's place in the states.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r}: kda_backward takes {', '.join(LAYOUTS)}")
    if scale is not None and not abs(scale) < float("inf"):
        raise UsageError(f"scale {scale}: must be finite")
    optional = {"cu_seqlens": cu_seqlens, "initial_state": initial_state, "dht": dht}
    arrays = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "d_o": do}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    statics = {
        "use_cu_seqlens": cu_seqlens is not None,
        "use_initial_state": initial_state is not None,
        "use_final_gradient": dht is not None,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
        "safe_gate": safe_gate,
    }
    scalars = {} if scale is None else {"scale": scale}
    return Request(arrays, statics, scalars, dict.fromkeys(_STRIDED, LAYOUTS[layout]))


OPERATOR = Operator(
    name="kda_backward",
    summary="gradients of Kimi Delta Attention with respect to q, k, v, g, beta and the initial state",
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
