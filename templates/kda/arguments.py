"""Arguments shared by kda and its backward pass, and checks of them that need no array contents."""

from collections.abc import Mapping
from typing import Any

from tuner.errors import UsageError
from tuner.spec import Argument, DType, Role, within

from .recurrence import LOWER_BOUND

LAYOUTS: Mapping[str, tuple[int, ...]] = {"bthd": (0, 1, 2, 3), "bhtd": (0, 2, 1, 3)}  # beta has the first three dims
KEYS = ("batch", "seq_len", "heads", "key_dim")
GATES = ("batch", "seq_len", "value_heads", "key_dim")
VALUES = ("batch", "seq_len", "value_heads", "value_dim")
BETAS = ("batch", "seq_len", "value_heads")
STATE = ("value_heads", "state_rows", "state_columns")
ROWS = "rows 16-byte aligned"

TOKENS = (
    Argument("q", "dtype", KEYS, strided=True, doc=ROWS),
    Argument("k", "dtype", KEYS, strided=True, doc=ROWS),
    Argument("v", "dtype", VALUES, strided=True, doc=ROWS),
    Argument("g", "gate_dtype", GATES, strided=True, doc=f"natural logarithm of the decay, <= 0; {ROWS}"),
    Argument("beta", "beta_dtype", BETAS, strided="all", doc="step size of the delta rule"),
    Argument(
        "A_log",
        DType.FP32,
        ("gate_heads",),
        optional="use_gate_in_kernel",
        doc="absent unless the kernel computes the gate",
    ),
    Argument("dt_bias", DType.FP32, ("bias_heads", "key_dim"), optional="use_dt_bias", doc="absent: zeros"),
)
SEQUENCES = (
    Argument(
        "cu_seqlens",
        "index_dtype",
        ("boundaries",),
        optional="use_cu_seqlens",
        doc="start offset of each sequence and the end of the last",
    ),
    Argument(
        "initial_state", DType.FP32, ("initial_states", *STATE), optional="use_initial_state", doc="absent: zeros"
    ),
)
SCALARS = (
    Argument(
        "scale",
        DType.FP32,
        role=Role.SCALAR,
        default=lambda problem: float(problem.key_dim**-0.5),
        doc="of q; default key_dim ** -0.5",
    ),
    Argument(
        "lower_bound",
        DType.FP32,
        role=Role.SCALAR,
        default=lambda _problem: LOWER_BOUND,
        doc="of the kernel's gate with use_lower_bound",
    ),
)


def scalars(scale: float | None, lower_bound: float | None) -> dict[str, float]:
    """The scalars that the caller passes. Raises UsageError for values that are not finite, or a lower_bound of 0 or
    more."""
    if scale is not None and not within(scale, float("-inf"), float("inf")):
        raise UsageError(f"scale {scale!r}: must be finite, as a number")
    if lower_bound is not None and not within(lower_bound, float("-inf"), 0):
        raise UsageError(f"lower_bound {lower_bound!r}: must be negative and finite, as a number")
    return {name: x for name, x in (("scale", scale), ("lower_bound", lower_bound)) if x is not None}


def gate(A_log: Any, dt_bias: Any, use_gate_in_kernel: bool) -> dict[str, Any]:
    """Tensors of the gate in the kernel, dt_bias as [HV, K]. Raises UsageError for A_log without use_gate_in_kernel, or
    vice versa."""
    if (A_log is not None) != use_gate_in_kernel:
        raise UsageError("A_log goes with use_gate_in_kernel: pass both or neither")
    if dt_bias is not None and dt_bias.ndim == 1 and A_log is not None:
        dt_bias = dt_bias.reshape(A_log.shape[0], -1)
    return {"A_log": A_log, "dt_bias": dt_bias}


def axes(operator: str, layout: str, tensors: tuple[str, ...], betas: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The permutation of the dims of each tensor in the caller's arrays. Raises UsageError for an unknown layout."""
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r}: {operator} supports {', '.join(LAYOUTS)}")
    return dict.fromkeys(tensors, LAYOUTS[layout]) | dict.fromkeys(betas, LAYOUTS[layout][:3])
