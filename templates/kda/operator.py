"""kda, forward: Kimi Delta Attention, a delta rule whose state decays with a separate gate for every key channel."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UsageError
from tuner.spec import (
    Argument,
    Cost,
    DType,
    Gradient,
    Operator,
    Reduction,
    Request,
    Role,
    Tolerance,
    Updated,
    tolerance_of,
)

from .arguments import ROWS, SCALARS, SEQUENCES, STATE, TOKENS, VALUES, axes, gate, scalars
from .cases import INPUT_KINDS, SAFE_GATE, inputs, tails
from .launches import gate_bytes, state_bytes
from .problem import Problem
from .recurrence import reference, rounded

ARGUMENTS = (
    *TOKENS,
    *SEQUENCES,
    Argument(
        "state_pool",
        DType.FP32,
        ("pool_states", *STATE),
        Role.UPDATED,
        strided=True,
        optional="inplace_final_state",
        doc=f"initial states, overwritten by the final states; {ROWS}",
    ),
    Argument(
        "ssm_state_indices",
        DType.INT32,
        ("state_indices",),
        strided="all",
        optional="use_state_indices",
        doc="each sequence's entry of the pool, all distinct; negative: none",
    ),
    Argument("o", "dtype", VALUES, Role.OUTPUT, strided=True, doc=ROWS),
    Argument(
        "final_state",
        DType.FP32,
        ("final_states", *STATE),
        Role.OUTPUT,
        optional="output_final_state",
        doc="empty unless asked for",
        without={"seq_len": "initial_state"},
    ),
    *SCALARS,
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in ("seq_len", "heads", "value_heads", "boundaries")),
)


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    return dict.fromkeys(("o", "final_state", "state_pool"), tolerance_of(Reduction.RECURRENCE, problem.operands))


def cost(problem: Problem) -> Cost:
    """Three products with the state per token (k, q, and the update), two operations each; every tensor is moved
    once."""
    K, V, element = problem.key_dim, problem.value_dim, problem.dtype.itemsize
    tokens = problem.batch * problem.seq_len
    # bytes per row of a value head
    row = element * 2 * V + problem.gate_dtype.itemsize * K + problem.beta_dtype.itemsize
    nbytes = tokens * (problem.value_heads * row + problem.heads * element * 2 * K)
    nbytes += gate_bytes(problem) + state_bytes(problem)
    items = tokens * problem.value_heads
    return Cost(flops=6 * K * V * items, bytes=nbytes, items=items, item="token and head")


def kda(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: float | None = None,
    initial_state: Updated = None,
    output_final_state: bool = False,
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
    inplace_final_state: bool = False,
    ssm_state_indices: Any = None,
    precision: str = "dtype",
    layout: str = "bthd",
) -> Request:
    """Kimi Delta Attention, with the argument names of FLA's `chunk_kda` and `fused_recurrent_kda`. Returns (o,
    final_state).

    A token decays the state S [K, V] by e^g, separately per channel of K, then corrects the value recalled for k by
    beta times the error: S += beta k (v - Sᵀ k)ᵀ, and o = scale · Sᵀ q.

    q, k: [B, T, H, K]; v: [B, T, HV, V]; g: [B, T, HV, K], the natural logarithm of the decay, <= 0; beta: [B, T, HV].
    H divides HV: value head h reads head h · H // HV of q and k. With layout="bhtd", q, k, v and g are [B, H, T, ·],
    and beta is [B, HV, T], as in head-first FLA. K and V are 16 to 256 in steps of 16; q, k and v are all bf16, fp16 or
    fp32. Strided views are used without a copy: the last dim must be contiguous, and every row must start at a multiple
    of 16 bytes; beta may have any strides.

    scale: default K ** -0.5. initial_state: fp32 [B, HV, K, V], default zeros. output_final_state: whether final_state
    is returned, otherwise it is empty. state_v_first: states are [B, HV, V, K], those of a pool [P, HV, V, K].
    use_qk_l2norm_in_kernel: q and k are first divided by their norms; without it they should have unit length, or the
    state grows. use_beta_sigmoid_in_kernel: beta is passed before its sigmoid; allow_neg_eigval doubles that sigmoid.
    safe_gate guarantees g >= -5, which saves a check.

    use_gate_in_kernel: g is passed before its gate, -exp(A_log) · softplus(g + dt_bias), or with a lower_bound (< 0)
    lower_bound · sigmoid(exp(A_log) · (g + dt_bias)). A_log: fp32 [HV]; dt_bias: fp32 [HV, K] or [HV · K], default
    zeros.

    cu_seqlens: int32 or int64 [N + 1], ascending from 0 to T: B is 1, and sequence n consists of the tokens entry n to
    entry n + 1. States are then [N, HV, K, V].

    inplace_final_state: initial_state is a pool [P, HV, K, V] of states that the call updates in place, and final_state
    is empty. Rows of the pool may have any strides, but each must be contiguous and start at a multiple of 16 bytes.
    ssm_state_indices: int32 [N], the entry of the pool for each sequence, below P and all distinct; a sequence with a
    negative index has no state: its o is zero, and nothing else happens. Without indices P is N, and entry n belongs to
    sequence n. Each state is read once, and written once, after the sequence's last token; other entries are not
    accessed.

    o has the shape, layout and dtype of v; final_state is fp32 [B, HV, K, V].

    precision: the precision of the operands of matrix products; sums are fp32. "dtype" is bf16 for 16-bit tensors (the
    range of fp16 is too small for a decay and its inverse) and fp32 for fp32 tensors; "tf32" and "fp32" are allowed for
    any. Errors stay below 5e-3, 1e-3 and 1e-5 of the root mean square of the exact result, apart from the rounding of
    o, or in bf16 and tf32 below 1.2 times the error of rounding these operands in the chunked form. That is larger for
    nearly equal keys and weak gates: 2e-2 in bf16 for unit(b + 0.05 z), b and z normal, beta .97 and gates of -1e-3,
    3e-3 in tf32.

    Raises UsageError for an unknown layout, an invalid scale or lower_bound, A_log without its gate, or indices without
    a pool, and InputError for arrays that do not fit.
    """
    if (initial_state is None and inplace_final_state) or (ssm_state_indices is not None and not inplace_final_state):
        raise UsageError("ssm_state_indices need inplace_final_state, which needs an initial_state: the pool")
    optional = {
        **gate(A_log, dt_bias, use_gate_in_kernel),
        "cu_seqlens": cu_seqlens,
        "state_pool" if inplace_final_state else "initial_state": initial_state,
        "ssm_state_indices": ssm_state_indices,
    }
    arrays = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    statics: dict[str, bool | str] = {
        "use_cu_seqlens": cu_seqlens is not None,
        "use_initial_state": initial_state is not None and not inplace_final_state,
        "output_final_state": output_final_state and not inplace_final_state,
        "inplace_final_state": inplace_final_state,
        "use_state_indices": ssm_state_indices is not None,
        "precision": precision,
        "state_v_first": state_v_first,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_gate_in_kernel": use_gate_in_kernel,
        "use_dt_bias": dt_bias is not None,
        "use_lower_bound": lower_bound is not None,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
        "safe_gate": safe_gate or (lower_bound is not None and lower_bound >= SAFE_GATE),
    }
    strided = axes("kda", layout, ("q", "k", "v", "g", "o"), ("beta",))
    return Request(arrays, statics, scalars(scale, lower_bound), strided)


OPERATOR = Operator(
    name="kda",
    summary="Kimi Delta Attention: a delta rule with one decay per key channel, and a state of K × V per head",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=kda,
    gradient=Gradient(
        "kda_backward",
        upstream={"final_state": "dht"},
        gradients={"initial_state": "dh0"},
        no_gradient={
            "output_final_state": "implied by the gradient of the state",
        },
        unsupported=dict.fromkeys(("inplace_final_state", "ssm_state_indices"), "the states are updated in place"),
    ),
    folder=Path(__file__).parent,
)
