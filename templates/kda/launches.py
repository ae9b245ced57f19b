"""Argument lists of kda launches, and the bytes of optional tensors."""

from .problem import Problem

TENSORS = (
    *("q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens"),
    *("initial_state", "state_pool", "ssm_state_indices", "o", "final_state"),
)
SCALARS = ("scale", "lower_bound", "seq_len", "heads", "value_heads")


def pool_strides(problem: Problem) -> dict[str, str]:
    """`state_pool_strides`: the strides of the states, heads and rows of the pool, and of the indices; zeros if
    absent."""
    strides = [f"state_pool_{dim}_stride" for dim in ("pool_states", "value_heads", "state_rows")]
    index_stride = "ssm_state_indices_state_indices_stride" if problem.use_state_indices else "0"
    return {"state_pool_strides": ", ".join((*(strides if problem.inplace_final_state else "000"), index_stride))}


def gate_bytes(problem: Problem) -> int:
    """Bytes of A_log and dt_bias."""
    return 4 * problem.value_heads * (problem.use_gate_in_kernel + problem.use_dt_bias * problem.key_dim)


def state_bytes(problem: Problem) -> int:
    """Bytes of all states read and written."""
    states = problem.initial_states + problem.final_states + 2 * problem.sequences * problem.inplace_final_state
    return 4 * states * problem.value_heads * problem.key_dim * problem.value_dim
