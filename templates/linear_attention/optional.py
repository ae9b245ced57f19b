"""Arguments that a problem may lack: launches do not take them, and templates spell them nullptr."""

from collections.abc import Mapping

from .sizes import Sizes


def taken(problem: Sizes, *names: str) -> tuple[str, ...]:
    """`names` less the absent ones: what a launch takes."""
    return tuple(name for name in names if problem.optional.get(name, True))


def pointers(problem: Sizes) -> Mapping[str, str]:
    """How templates spell them."""
    return {f"{name}_pointer": name if found else "nullptr" for name, found in problem.optional.items()}


SCALARS = ("beta_scalar", "batch", "seq_len", "heads", "boundaries")
INPUTS = ("q", "k", "v", "beta", "initial_state", "cu_seqlens")
OUTPUTS = ("o", "final_state")
