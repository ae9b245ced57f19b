"""Peers of kda: flash-linear-attention's chunked and recurrent kernels, with the arguments of its version 0.6."""

from typing import Any

from tuner.bench.peers import AbsentError, Peer, Run, Scalars, Tensors, module

_FLAGS = (
    "output_final_state",
    "use_qk_l2norm_in_kernel",
    "use_gate_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
    "state_v_first",
)


def _chunk(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    fla, arguments = module("fla.ops.kda"), _arguments(problem, tensors, scalars)
    bounded = problem.use_lower_bound or not problem.use_gate_in_kernel
    arguments["safe_gate"] = (
        problem.safe_gate and bounded
    )  # with its own gate, FLA interprets safe_gate as a lower_bound
    return lambda: _outputs(problem, fla.chunk_kda(**arguments))


def _recurrent(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    fla, arguments = module("fla.ops.kda"), _arguments(problem, tensors, scalars)
    return lambda: _outputs(problem, fla.fused_recurrent_kda(**arguments))


def _arguments(problem: Any, tensors: Tensors, scalars: Scalars) -> dict[str, Any]:
    """Arguments by FLA's names; they equal those of kda, except for the shape of dt_bias and omitted tensors.

    Raises AbsentError for a pool of states: the public functions of FLA do not support it.
    """
    if problem.inplace_final_state:
        raise AbsentError("FLA's public functions do not update states in place")
    optional = ("A_log", "dt_bias", "initial_state", "cu_seqlens")
    arguments = {name: tensors[name] for name in ("q", "k", "v", "g", "beta")}
    arguments |= {name: tensors[name] for name in optional if tensors[name].numel()}
    arguments |= {name: getattr(problem, name) for name in _FLAGS} | {"scale": scalars["scale"]}
    if "dt_bias" in arguments:
        arguments["dt_bias"] = arguments["dt_bias"].reshape(-1)
    if "cu_seqlens" in arguments:
        arguments["cu_seqlens"] = arguments["cu_seqlens"].long()
    if problem.use_lower_bound:
        arguments["lower_bound"] = scalars["lower_bound"]
    return arguments


def _outputs(problem: Any, results: tuple[Any, ...]) -> dict[str, Any]:
    o, final_state = results
    return {"o": o} | ({"final_state": final_state} if problem.output_final_state else {})


_TUNES_S = 300.0  # at the first call, Triton autotunes some hundred configs of the chunked kernels one after the other
PEERS = (
    Peer("fla chunk_kda", _chunk, many_launches=True, patience_s=_TUNES_S),
    Peer("fla fused_recurrent_kda", _recurrent, many_launches=True, patience_s=_TUNES_S),
)
