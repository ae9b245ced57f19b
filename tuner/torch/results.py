"""Results in the forms that flash-attn, vLLM and SGLang expect."""

from typing import Any

from tuner.errors import InputError


def returned(function: str, o: Any, lse: Any, out: Any, *, with_lse: bool, with_pattern: bool = False) -> Any:
    """Return o, or `out` with its contents; with lse if requested, and with None for the dropout pattern.

    Raises InputError for an `out` of another shape, and if gradients are tracked, which belong to o.
    """
    if out is not None:
        if out.shape != o.shape:
            raise InputError(f"{function}: out is {[*out.shape]}, and what is returned {[*o.shape]}")
        if o.requires_grad:
            raise InputError(f"{function}: out has no gradient: leave it out, or call under torch.no_grad()")
        o = out.copy_(o)
    if with_pattern:
        return o, lse, None
    return (o, lse) if with_lse else o
