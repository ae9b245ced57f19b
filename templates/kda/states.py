"""The optional states: which of them a launch takes, and what a template reads in their place."""

from .problem import Problem


def taken(problem: Problem, *names: str) -> tuple[str, ...]:
    """`names` less the states that the problem does not have: what a launch takes."""
    absent = {"initial_state": not problem.use_initial_state, "final_state": not problem.output_final_state}
    return tuple(name for name in names if not absent.get(name, False))


def pointers(problem: Problem) -> dict[str, str]:
    """C++ expressions for the states: the parameter, or a null pointer where the launch takes none."""
    return {
        "first_state": "initial_state" if problem.use_initial_state else "nullptr",
        "last_state": "final_state" if problem.output_final_state else "nullptr",
    }


def state_bytes(problem: Problem) -> int:
    """Bytes of both states together."""
    states = problem.initial_states + problem.final_states
    return 4 * states * problem.value_heads * problem.key_dim * problem.value_dim
