"""Arguments of the flash_attention kernels: those common to every attention operator, and the optional ones."""

from typing import Any

from tuner.errors import UsageError
from tuner.spec import Argument, DType, Role, within

from .problem import Problem

SOFTCAP = 50.0  # value used by Gemma 2; with use_softcap every call passes its own
_BOUNDS = "start offset of each packed sequence and the end of the last: ascending from 0 to"
_KEYS = ("seq_k", "slots", "max_pages")  # names of the number of keys in the attention operators

ARGUMENTS = (
    Argument("q", "dtype", ("batch", "seq_q", "heads", "head_dim"), strided=True, doc="rows 16-byte aligned"),
    Argument("k", "dtype", ("batch", "seq_k", "kv_heads", "head_dim"), strided=True, doc="rows 16-byte aligned"),
    Argument("v", "dtype", ("batch", "seq_k", "kv_heads", "head_dim_v"), strided=True, doc="rows 16-byte aligned"),
    Argument(
        "o",
        "dtype",
        ("batch", "seq_q", "heads", "head_dim_v"),
        Role.OUTPUT,
        strided=True,
        doc="rows 16-byte aligned; 0 where a query attends no key",
        without=dict.fromkeys(_KEYS, 0.0),
    ),
    Argument(
        "lse",
        DType.FP32,
        ("batch", "heads", "seq_q"),
        Role.OUTPUT,
        doc="natural logarithm of the sum of exp(scale · scores); -inf where a query attends no key",
        without=dict.fromkeys(_KEYS, float("-inf")),
    ),
    Argument(
        "softmax_scale",
        DType.FP32,
        role=Role.SCALAR,
        default=lambda problem: float(problem.head_dim**-0.5),
        doc="positive; default head_dim ** -0.5",
    ),
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k")),
)

OPTIONAL = (
    Argument("cu_seqlens_q", DType.INT32, ("boundaries",), optional="use_cu_seqlens", doc=f"{_BOUNDS} seq_q"),
    Argument("cu_seqlens_k", DType.INT32, ("boundaries",), optional="use_cu_seqlens", doc=f"{_BOUNDS} seq_k"),
    Argument(
        "softcap",
        DType.FP32,
        role=Role.SCALAR,
        default=lambda _problem: SOFTCAP,
        optional="use_softcap",
        doc="positive: the cap of scaled scores, with use_softcap",
    ),
    Argument("boundaries", DType.INT32, role=Role.SCALAR, optional="use_cu_seqlens"),
    *(Argument(name, DType.INT32, role=Role.SCALAR, optional="use_window") for name in ("window_left", "window_right")),
    Argument(
        "s_aux",
        DType.FP32,
        ("s_aux_heads",),
        optional="use_s_aux",
        doc="one logit per head, added to the softmax denominator",
    ),
)


def scalars(softmax_scale: float | None, softcap: float = 0.0) -> dict[str, float]:
    """The scalars that the caller passes. Raises UsageError for values that are not positive and finite."""
    if softmax_scale is not None and not within(softmax_scale, 0, float("inf")):
        raise UsageError(f"softmax_scale {softmax_scale!r}: must be positive and finite, as a number")
    scalar_values = {} if softmax_scale is None else {"softmax_scale": softmax_scale}
    if within(softcap, 0, float("inf")):
        return {**scalar_values, "softcap": softcap}
    if softcap != 0:
        raise UsageError(f"softcap {softcap!r}: must be positive and finite, or 0 for none, as a number")
    return scalar_values


def given_logits(s_aux: Any, keys: Any, axis: int) -> Any:
    """Returns s_aux. Raises UsageError if dim `axis` of `keys` is empty: no kernel runs then, so lse would not be
    s_aux."""
    if 0 in tuple(getattr(keys, "shape", ()))[axis : axis + 1]:
        raise UsageError("s_aux: pass it with keys: without keys no kernel runs, and lse would not be s_aux")
    return s_aux


def optional_refusal(problem: Problem) -> str | None:
    """Why a kernel that starts at the first key and sums over keys only does not support a problem; None if it does."""
    if problem.use_window:
        return "use_window: its tiles start at the first key; mma_sync skips keys that no query of a block attends"
    if problem.use_s_aux:
        return "use_s_aux: its sums are over keys only; mma_sync adds the head's logit"
    return None
