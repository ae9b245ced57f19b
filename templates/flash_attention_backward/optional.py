"""dlse, which need not be given: launches then do not take it, and templates spell it nullptr."""

from typing import Any


def taken(problem: Any, *names: str) -> tuple[str, ...]:
    """`names`, without dlse where the problem has none: what a launch takes."""
    return tuple(name for name in names if name != "dlse" or problem.use_lse_gradient)


def pointer(problem: Any) -> dict[str, str]:
    """`dlse_row` → where the gradient of lse of query `row` of head `head` in batch `b` lies, or a null pointer."""
    steps = "b * dlse_lse_gradients_stride + head * dlse_heads_stride + row * dlse_seq_q_stride"
    return {"dlse_row": f"dlse + {steps}" if problem.use_lse_gradient else "nullptr"}
