"""Results in the forms that flash-attn, vLLM and SGLang ask for."""

from typing import Any

from tuner.errors import InputError


def returned(function: str, o: Any, lse: Any, out: Any, *, with_lse: bool, with_pattern: bool = False) -> Any:
    """o, or `out` with what is in it; with lse if that is wanted, and with None for the pattern of a dropout.

    Raises InputError for an `out` of another shape, and for one where gradients are kept: they are those of o.
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
