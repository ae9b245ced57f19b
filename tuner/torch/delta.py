"""The delta rule, gated or not, with the signatures of flash-linear-attention 0.6, so that swapping is one import.

    from tuner.torch import chunk_gated_delta_rule  # in place of fla.ops.gated_delta_rule

Both are Kimi Delta Attention with one gate for all key channels of a head, and are computed by the operator `kda`. It
reads a gate for each channel, so the gate is expanded in memory to [B, T, HV, K].
"""

from collections.abc import Callable
from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch.fla import chunk_kda, fused_recurrent_kda
from tuner.torch.unsupported_arguments import refuse

# further arguments of FLA's functions that do not change results
HINTS = ("chunk_indices", "chunk_size", "cu_seqlens_cpu", "use_graph", "max_num_seqs", "disable_recompute")


def chunk_gated_delta_rule(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    **others: Any,
) -> tuple[Any, Any]:
    """The gated delta rule with the arguments of FLA's `chunk_gated_delta_rule`. Returns (o, final_state).

    q, k: [B, T, H, K]; v: [B, T, HV, V], where H divides HV; g, the natural logarithm of the decay, <= 0, and beta: [B,
    T, HV]; initial_state: fp32 [N, HV, K, V], or V-first. K and V are 16 to 256 in steps of 16. o is like v;
    final_state is like initial_state, or None unless output_final_state. Gradients flow from both to all tensors.

    Raises InputError for cp_context, unknown arguments and unsuitable tensors.
    """
    name = "chunk_gated_delta_rule"
    _refuse(name, others, "fla.ops.gated_delta_rule")
    return chunk_kda(
        q,
        k,
        v,
        _of_channels(name, g, k),
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
    )


def fused_recurrent_gated_delta_rule(
    q: Any,
    k: Any,
    v: Any,
    g: Any = None,
    gk: Any = None,
    gv: Any = None,
    beta: Any = None,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Any = None,
    dt_bias: Any = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    **others: Any,
) -> tuple[Any, Any]:
    """`chunk_gated_delta_rule` with the argument order of FLA's function, and the precision of a recurrence.

    gk: [B, T, HV, K], a gate per key channel, which is added to g. With use_gate_in_kernel, g is the input of the gate
    -exp(A_log) · softplus(g + dt_bias), A_log and dt_bias [HV]. beta: default ones. q, k and v may differ in dtype.

    Raises InputError for gv, unknown arguments and unsuitable tensors.
    """
    name = "fused_recurrent_gated_delta_rule"
    _refuse(name, {"gv": gv, **others}, "fla.ops.gated_delta_rule")
    if use_gate_in_kernel:
        if A_log is None or g is None:
            raise InputError(f"{name}: use_gate_in_kernel needs g [B, T, HV] and A_log [HV]: pass both")
        raw = g.float() if dt_bias is None else g.float() + dt_bias.float()
        g = -A_log.float().exp() * torch.nn.functional.softplus(raw)
    gate = None if g is None else _of_channels(name, g, k)
    if gk is not None:
        gate = gk if gate is None else gate.float() + gk.float()
    return fused_recurrent_kda(
        q,
        k,
        v,
        _open(v, k) if gate is None else gate,
        v.new_ones(v.shape[:3]) if beta is None else beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
    )


def chunk_delta_rule(
    q: Any,
    k: Any,
    v: Any,
    beta: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
    **others: Any,
) -> tuple[Any, Any]:
    """`chunk_gated_delta_rule` without a decay, with the arguments of FLA's `chunk_delta_rule`."""
    _refuse("chunk_delta_rule", others, "fla.ops.delta_rule")
    return chunk_kda(
        q,
        k,
        v,
        _open(v, k),
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        cu_seqlens=cu_seqlens,
    )


def _refuse(function: str, others: dict[str, Any], theirs: str) -> None:
    unserved = {name: value for name, value in others.items() if name not in HINTS}
    refuse(function, unserved, f"{theirs}.{function}")


def _of_channels(function: str, g: Any, k: Any) -> Any:
    """Expand g [B, T, HV] to the K channels."""
    if g.ndim != 3:
        raise InputError(
            f"{function}: g has {g.ndim} dims: give [B, T, HV]; a gate for each key channel is chunk_kda's"
        )
    return g.unsqueeze(-1).expand(*g.shape, k.shape[-1])


def _open(v: Any, k: Any) -> Any:
    """Return the gate of a state that does not decay."""
    return v.new_zeros(*v.shape[:3], k.shape[-1])


def _without_correction(name: str) -> Callable[..., Any]:
    """Refuse a function of FLA whose state update has no delta rule: no operator computes it."""

    def refused(*_: Any, **__: Any) -> Any:
        raise InputError(
            f"{name} is not supported: its state has no delta rule, which is all that kda computes, and "
            "linear_attention "
            f"has a scalar state a channel: call flash-linear-attention's {name}"
        )

    refused.__name__ = name
    return refused


chunk_simple_gla = _without_correction("chunk_simple_gla")
fused_recurrent_simple_gla = _without_correction("fused_recurrent_simple_gla")
chunk_gla = _without_correction("chunk_gla")
fused_recurrent_gla = _without_correction("fused_recurrent_gla")
chunk_retention = _without_correction("chunk_retention")
fused_recurrent_retention = _without_correction("fused_recurrent_retention")
chunk_lightning_attn = _without_correction("chunk_lightning_attn")
fused_recurrent_lightning_attn = _without_correction("fused_recurrent_lightning_attn")
