"""The optional tensors: which of them a launch takes, and what a template reads in their place."""

from .problem import Problem

_FLAGS = {
    "cu_seqlens": "use_cu_seqlens",
    "initial_state": "use_initial_state",
    "dh0": "use_initial_state",
    "dht": "use_final_gradient",
}


def taken(problem: Problem, *names: str) -> tuple[str, ...]:
    """`names` less the tensors that the problem does not have: what a launch takes."""
    return tuple(name for name in names if name not in _FLAGS or getattr(problem, _FLAGS[name]))


def pointers(problem: Problem) -> dict[str, str]:
    """`<name>_pointer` → the C++ parameter, or a null pointer where the launch takes none."""
    return {f"{name}_pointer": name if getattr(problem, flag) else "nullptr" for name, flag in _FLAGS.items()}


def state_bytes(problem: Problem) -> int:
    """Bytes of initial_state, dh0 and dht together."""
    states = 2 * problem.initial_states + problem.final_states
    return 4 * states * problem.value_heads * problem.key_dim * problem.value_dim
