"""Arguments that a problem may lack: launches do not take them, and templates spell them nullptr."""

from collections.abc import Mapping

from .problem import Problem


def _absent(problem: Problem) -> frozenset[str]:
    there = {
        "beta": problem.decay != "scalar",
        "initial_state": problem.use_initial_state,
        "final_state": problem.output_final_state,
        "cu_seqlens": problem.varlen,
    }
    return frozenset(name for name, found in there.items() if not found)


def taken(problem: Problem, *names: str) -> tuple[str, ...]:
    """`names` less the absent ones: what a launch takes."""
    absent = _absent(problem)
    return tuple(name for name in names if name not in absent)


def pointers(problem: Problem) -> Mapping[str, str]:
    """How templates spell them."""
    absent = _absent(problem)
    names = ("beta", "initial_state", "final_state", "cu_seqlens")
    return {f"{name}_pointer": "nullptr" if name in absent else name for name in names}


SCALARS = ("beta_scalar", "batch", "seq_len", "heads", "boundaries")
INPUTS = ("q", "k", "v", "beta", "initial_state", "cu_seqlens")
OUTPUTS = ("o", "final_state")
