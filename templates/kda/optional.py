"""The optional tensors: which of them a launch takes, and what a template reads in their place."""

from .problem import Problem

TENSORS = (
    *("q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens"),
    *("initial_state", "state_pool", "ssm_state_indices", "o", "final_state"),
)
SCALARS = ("scale", "lower_bound", "seq_len", "heads", "value_heads")

# Argument → the flag that brings it.
_FLAGS = {
    "initial_state": "use_initial_state",
    "final_state": "output_final_state",
    "state_pool": "inplace_final_state",
    "ssm_state_indices": "use_state_indices",
    "A_log": "use_gate_in_kernel",
    "dt_bias": "use_dt_bias",
    "cu_seqlens": "use_cu_seqlens",
}


def taken(problem: Problem, *names: str) -> tuple[str, ...]:
    """`names` less the tensors that the problem does not have: what a launch takes."""
    return tuple(name for name in names if name not in _FLAGS or getattr(problem, _FLAGS[name]))


def pointers(problem: Problem) -> dict[str, str]:
    """`<name>_pointer` → the C++ parameter, or a null pointer where the launch takes none; the strides of the pool."""
    present = {name: getattr(problem, flag) for name, flag in _FLAGS.items()}
    found = {f"{name}_pointer": name if there else "nullptr" for name, there in present.items()}
    strides = [f"state_pool_{dim}_stride" for dim in ("pool_states", "value_heads", "state_rows")]
    index_stride = "ssm_state_indices_state_indices_stride" if problem.use_state_indices else "0"
    pool_strides = (*(strides if problem.inplace_final_state else "000"), index_stride)
    return {**found, "state_pool_strides": ", ".join(pool_strides)}


def gate_bytes(problem: Problem) -> int:
    """Bytes of A_log and dt_bias."""
    return 4 * problem.value_heads * (problem.use_gate_in_kernel + problem.use_dt_bias * problem.key_dim)


def state_bytes(problem: Problem) -> int:
    """Bytes of all states read and written."""
    states = problem.initial_states + problem.final_states + 2 * problem.sequences * problem.inplace_final_state
    return 4 * states * problem.value_heads * problem.key_dim * problem.value_dim
