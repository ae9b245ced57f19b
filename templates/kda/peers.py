"""Peers of kda: flash-linear-attention's chunked and recurrent kernels, by the arguments of its version 0.6."""

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
    fla, given = module("fla.ops.kda"), _arguments(problem, tensors, scalars)
    bounded = problem.use_lower_bound or not problem.use_gate_in_kernel
    given["safe_gate"] = problem.safe_gate and bounded  # with a gate of its own it takes the promise as a lower_bound
    return lambda: _outputs(problem, fla.chunk_kda(**given))


def _recurrent(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    fla, given = module("fla.ops.kda"), _arguments(problem, tensors, scalars)
    return lambda: _outputs(problem, fla.fused_recurrent_kda(**given))


def _arguments(problem: Any, tensors: Tensors, scalars: Scalars) -> dict[str, Any]:
    """By the names that FLA gives them; ours are the same, but for the shape of dt_bias and what is not there.

    Raises AbsentError for a pool of states: FLA has it below these functions only.
    """
    if problem.inplace_final_state:
        raise AbsentError("its public functions update no state in place")
    optional = ("A_log", "dt_bias", "initial_state", "cu_seqlens")
    given = {name: tensors[name] for name in ("q", "k", "v", "g", "beta")}
    given |= {name: tensors[name] for name in optional if tensors[name].numel()}
    given |= {name: getattr(problem, name) for name in _FLAGS} | {"scale": scalars["scale"]}
    if "dt_bias" in given:
        given["dt_bias"] = given["dt_bias"].reshape(-1)
    if "cu_seqlens" in given:
        given["cu_seqlens"] = given["cu_seqlens"].long()
    if problem.use_lower_bound:
        given["lower_bound"] = scalars["lower_bound"]
    return given


def _outputs(problem: Any, found: tuple[Any, ...]) -> dict[str, Any]:
    o, final_state = found
    return {"o": o} | ({"final_state": final_state} if problem.output_final_state else {})


_TUNES_S = (
    300.0  # Triton tries some hundred configs of the chunked form's kernels, one after the other, at a first call
)
PEERS = (
    Peer("fla chunk_kda", _chunk, many_launches=True, patience_s=_TUNES_S),
    Peer("fla fused_recurrent_kda", _recurrent, many_launches=True, patience_s=_TUNES_S),
)
