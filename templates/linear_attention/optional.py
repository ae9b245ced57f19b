"""Arguments that a problem may lack: launches do not take them, and templates spell them nullptr."""

from collections.abc import Mapping

from .problem import Problem


def _there(problem: Problem) -> Mapping[str, bool]:
    return {
        "beta": problem.decay != "scalar",
        "initial_state": problem.use_initial_state,
        "final_state": problem.output_final_state,
        "cu_seqlens": problem.varlen,
    }


def taken(problem: Problem, *names: str) -> tuple[str, ...]:
    """`names` less the absent ones: what a launch takes."""
    there = _there(problem)
    return tuple(name for name in names if there.get(name, True))


def pointers(problem: Problem) -> Mapping[str, str]:
    """How templates spell them."""
    return {f"{name}_pointer": name if found else "nullptr" for name, found in _there(problem).items()}


SCALARS = ("beta_scalar", "batch", "seq_len", "heads", "boundaries")
INPUTS = ("q", "k", "v", "beta", "initial_state", "cu_seqlens")
OUTPUTS = ("o", "final_state")
