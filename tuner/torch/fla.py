"""Kimi Delta Attention with the signatures of flash-linear-attention 0.6, so that swapping is one import.

    from tuner.torch import chunk_kda, fused_recurrent_kda  # in place of fla.ops.kda

Both call the differentiable operator `kda`, whose implementation the tuner selects.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from tuner.errors import InputError, MachineError
from tuner.torch.tensor_layout import addressable, dense
from tuner.torch.unsupported_arguments import refuse

_DISPATCHED: list[Any] = []  # modules of FLA in which `register` made a function ask FLA's registry


def chunk_kda(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,  # noqa: ARG001  # states are made again in the backward pass in any case
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,  # noqa: ARG001  # no length is read before the kernels run
    cp_context: Any = None,
    use_graph: bool = False,  # noqa: ARG001  # every call can be captured
    max_num_seqs: int | None = None,  # noqa: ARG001  # as many as cu_seqlens has
    *,
    A_log: Any = None,
    dt_bias: Any = None,
    chunk_size: int = 64,  # noqa: ARG001  # the tuner's to choose
    transpose_state_layout: bool | None = None,
    **others: Any,
) -> tuple[Any, Any]:
    """Kimi Delta Attention with the arguments and defaults of FLA's `chunk_kda`. Returns (o, final_state).

    q, k: [B, T, H, K]; v: [B, T, HV, V]; g: [B, T, HV, K]; beta: [B, T, HV]; initial_state: fp32 [N, HV, K, V], or
    V-first; A_log: HV elements; dt_bias: HV · K; `tuner.dispatcher.kda` documents their meaning. o is like v;
    final_state is like initial_state, or None unless output_final_state. Gradients flow from both to all of these
    tensors. As in FLA, tensors may have any strides; those that kernels cannot address are copied. A_log and dt_bias
    are used in fp32, in any shape, and only with use_gate_in_kernel; with a lower_bound A_log may be omitted and is
    zero. Tokens after the last sequence of cu_seqlens are not computed.

    Raises InputError for return_intermediate_states, cp_context and unknown arguments, for safe_gate with the kernel's
    own gate but no lower_bound, for two layouts of states, and for unsuitable tensors.
    """
    unserved = {"return_intermediate_states": return_intermediate_states, "cp_context": cp_context}
    refuse("chunk_kda", unserved | others, "fla.ops.kda.chunk_kda")
    if safe_gate and use_gate_in_kernel and lower_bound is None:
        raise InputError("chunk_kda: safe_gate bounds the kernel's own gate: pass a lower_bound in [-5, 0), or drop it")
    options = {
        "scale": scale,
        "output_final_state": bool(output_final_state),  # FLA's layers pass None
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
        # with the kernel's own gate, the lower_bound implies it
        "safe_gate": safe_gate and not use_gate_in_kernel,
        "state_v_first": _v_first("chunk_kda", state_v_first, transpose_state_layout),
        "precision": "tf32" if q.dtype is torch.float16 else "dtype",  # within the range of fp16, with room for decays
    }
    gate = _gate("chunk_kda", g, A_log, dt_bias, lower_bound) if use_gate_in_kernel else {}
    return _kda((q, k, v, g, beta), {"initial_state": initial_state, "cu_seqlens": cu_seqlens}, options | gate)


def fused_recurrent_kda(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    A_log: Any = None,
    dt_bias: Any = None,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    **others: Any,
) -> tuple[Any, Any]:
    """`chunk_kda` with the argument order of FLA's `fused_recurrent_kda`, and the precision of a recurrence.

    Products have fp32 operands, so that a decoder's state has only its own rounding errors (1e-5 of its root mean
    square), for any number of tokens per call. As in FLA, q, k and v may differ in dtype (o is like v), and
    initial_state may have any dtype: final_state is fp32. With inplace_final_state, as in FLA, initial_state is a pool
    of fp32 states that is updated in place and returned, and ssm_state_indices [N] are the entries of the sequences.

    Raises InputError for unknown arguments and unsuitable tensors.
    """
    v_first = _v_first("fused_recurrent_kda", state_v_first, others.pop("transpose_state_layout", None))
    pool = {name: others.pop(name, None) for name in ("inplace_final_state", "ssm_state_indices")}
    refuse("fused_recurrent_kda", others, "fla.ops.kda.fused_recurrent_kda")
    dtype = reduce(torch.promote_types, (q.dtype, k.dtype, v.dtype))
    options = {
        "scale": scale,
        "output_final_state": bool(output_final_state),
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
        "state_v_first": v_first,
        "precision": "fp32",
    }
    gate = _gate("fused_recurrent_kda", g, A_log, dt_bias, lower_bound) if use_gate_in_kernel else {}
    rows = (q.to(dtype), k.to(dtype), v.to(dtype), g, beta)
    if pool["inplace_final_state"]:
        o = _pooled(rows, initial_state, pool["ssm_state_indices"], cu_seqlens, options | gate)
        return o.to(v.dtype), initial_state
    state = None if initial_state is None else initial_state.float()
    o, final_state = _kda(rows, {"initial_state": state, "cu_seqlens": cu_seqlens}, options | gate)
    return o.to(v.dtype), final_state


def _pooled(rows: Sequence[Any], pool: Any, indices: Any, cu_seqlens: Any, options: Mapping[str, Any]) -> Any:
    """Return o and update the states in place, so that the pool is never copied."""
    q, k, v, g, beta = rows
    o, _ = torch.ops.tuner.kda(
        *map(addressable, (q, k, v, g)),
        beta,
        initial_state=pool,
        cu_seqlens=None if cu_seqlens is None else dense(cu_seqlens),
        ssm_state_indices=None if indices is None else indices.to(torch.int32),
        inplace_final_state=True,
        **{name: value for name, value in options.items() if name != "output_final_state"},
    )
    return o


def _v_first(function: str, state_v_first: bool, transpose_state_layout: bool | None) -> bool:
    if state_v_first and transpose_state_layout is not None:
        raise InputError(f"{function}: transpose_state_layout is the old name of state_v_first: pass one of them")
    return state_v_first or bool(transpose_state_layout)


def _gate(function: str, g: Any, A_log: Any, dt_bias: Any, lower_bound: float | None) -> dict[str, Any]:
    """Return kda's arguments for a gate computed from raw g."""
    if A_log is None and lower_bound is None:
        raise InputError(f"{function}: use_gate_in_kernel needs an A_log [HV], or a lower_bound: pass one")
    rates = g.new_zeros(g.shape[2], dtype=torch.float32) if A_log is None else A_log.float().reshape(-1)
    bias = None if dt_bias is None else dt_bias.float().reshape(-1)
    return {"use_gate_in_kernel": True, "lower_bound": lower_bound, "A_log": rates, "dt_bias": bias}


def _kda(tensors: tuple[Any, ...], others: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, Any]:
    *rows, beta = tensors
    whole = {name: None if other is None else dense(other) for name, other in others.items()}
    o, final_state = torch.ops.tuner.kda(*map(addressable, rows), beta, **whole, **options)
    return o, final_state if options["output_final_state"] else None


def register() -> None:
    """Serve flash-linear-attention's own `chunk_kda`, `fused_recurrent_kda`, `chunk_gated_delta_rule` and
    `fused_recurrent_gated_delta_rule` in unmodified layers and models.

        import tuner.torch
        tuner.torch.fla.register()  # FLA's KimiDeltaAttention, and Kimi Linear of transformers if FLA is installed

    Registers the backend "kerntune" in FLA's public registry (`fla.backends`, FLA 0.6 or newer), before FLA's own
    backends, which receive the calls that are not supported. A second call has no effect. FLA_KERNTUNE=0 in the
    environment disables it. FLA does not dispatch the function behind `fused_recurrent_gated_delta_rule`: FLA's own
    decorator is applied to it. Raises MachineError if FLA is not installed or has no such registry.
    """
    try:
        from fla.backends import dispatch
        from fla.backends import register as announce
        from fla.ops.gated_delta_rule import fused_recurrent as recurrent
        from fla.ops.kda import chunk_kda as theirs

        from tuner.torch.fla_backend import Backend
    except ImportError as error:
        missing = (error.name or "fla").partition(".")[0] if isinstance(error, ModuleNotFoundError) else "fla"
        package = "'fla-core>=0.6'" if missing == "fla" else missing
        raise MachineError(f"flash-linear-attention cannot be imported ({error}): pip install {package}") from error
    announce(theirs)(Backend)  # called by layers in training
    operation = theirs.__module__.split(".")[-2]  # FLA names an operation after its folder
    announce(operation)(Backend)  # called in decoding: FLA dispatches it as one of the operation's functions
    announce("gated_delta_rule")(Backend)
    if recurrent not in _DISPATCHED:
        _DISPATCHED.append(recurrent)
        served = dispatch("gated_delta_rule")(recurrent.fused_recurrent_gated_delta_rule_fwd)
        recurrent.fused_recurrent_gated_delta_rule_fwd = served
