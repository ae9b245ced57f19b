"""What need not be given: launches then do not take it, and templates spell what stands for it."""

from typing import Any

_FLAGS = {
    "dlse": "use_lse_gradient",
    "cu_seqlens_q": "use_cu_seqlens",
    "cu_seqlens_k": "use_cu_seqlens",
    "boundaries": "use_cu_seqlens",
    "softcap": "use_softcap",
    "window_left": "use_window",
    "window_right": "use_window",
    "s_aux": "use_s_aux",
    "ds_aux": "use_s_aux",
}


def taken(problem: Any, *names: str) -> tuple[str, ...]:
    """`names`, without those that the problem does not have: what a launch takes."""
    return tuple(name for name in names if name not in _FLAGS or getattr(problem, _FLAGS[name]))


def pointer(problem: Any) -> dict[str, str]:
    """`dlse_row` → where the gradient of lse of query `row` of head `head` in batch `b` lies, or a null pointer."""
    steps = "b * dlse_lse_gradients_stride + head * dlse_heads_stride + row * dlse_seq_q_stride"
    return {"dlse_row": f"dlse + {steps}" if problem.use_lse_gradient else "nullptr"}


def spelled(problem: Any) -> dict[str, str]:
    """`<name>_argument` → the parameter of packed sequences or of capped scores, or what stands for it."""
    absent = {"cu_seqlens_q": "nullptr", "cu_seqlens_k": "nullptr", "boundaries": "0", "softcap": "0.0f"}
    return {f"{name}_argument": name if taken(problem, name) else instead for name, instead in absent.items()}
