"""What flash_attention's kernels take: what every attention has, and what need not be there."""

from typing import Any

from tuner.errors import UsageError
from tuner.spec import Argument, DType, Role, within

from .problem import Problem

SOFTCAP = 50.0  # that of Gemma 2; with use_softcap every call gives its own
_BOUNDS = "where each packed sequence begins, and the last ends: ascending from 0 to"
_KEYS = ("seq_k", "slots", "max_pages")  # their number, as one attention or another calls it

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
        doc="positive: what scaled scores are capped at, with use_softcap",
    ),
    Argument("boundaries", DType.INT32, role=Role.SCALAR, optional="use_cu_seqlens"),
    *(Argument(name, DType.INT32, role=Role.SCALAR, optional="use_window") for name in ("window_left", "window_right")),
    Argument(
        "s_aux",
        DType.FP32,
        ("s_aux_heads",),
        optional="use_s_aux",
        doc="a logit a head that joins the softmax's denominator",
    ),
)


def scalars(softmax_scale: float | None, softcap: float = 0.0) -> dict[str, float]:
    """Those that the caller gives. Raises UsageError for values that mean nothing."""
    if softmax_scale is not None and not within(softmax_scale, 0, float("inf")):
        raise UsageError(f"softmax_scale {softmax_scale!r}: must be positive and finite, as a number")
    given = {} if softmax_scale is None else {"softmax_scale": softmax_scale}
    if within(softcap, 0, float("inf")):
        return {**given, "softcap": softcap}
    if softcap != 0:
        raise UsageError(f"softcap {softcap!r}: must be positive and finite, or 0 for none, as a number")
    return given


def given_logits(s_aux: Any, keys: Any, axis: int) -> Any:
    """s_aux. Raises UsageError where `axis` of `keys` is none: no kernel runs then, and lse would not be s_aux."""
    if 0 in tuple(getattr(keys, "shape", ()))[axis : axis + 1]:
        raise UsageError("s_aux: give it with keys: without any no kernel runs, and lse would not be s_aux")
    return s_aux


def optional_refusal(problem: Problem) -> str | None:
    """Why a kernel whose walk over the keys begins with the first, and whose sums are of keys alone, does not serve a
    problem; None if it may."""
    if problem.use_window:
        return "use_window: its tiles begin with the first key; mma_sync leaves out what no query of a block attends"
    if problem.use_s_aux:
        return "use_s_aux: its sums are over keys alone; mma_sync adds a head's logit to them"
    return None
