"""flash_attention, forward: O = softmax(scale · Q Kᵀ) V and the log-sum-exp of each row, exact for any head_dim."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Cost, DType, Gradient, Operator, Precision, Reduction, Request, Tolerance, tolerance_of

from .arguments import ARGUMENTS as ARGUMENTS
from .arguments import OPTIONAL, given_logits
from .arguments import scalars as given_scalars
from .cases import INPUT_KINDS as INPUT_KINDS
from .cases import attention as attention
from .cases import inputs as inputs
from .cases import optional_inputs
from .cases import reference as reference
from .cases import rounded as rounded
from .cases import tails as tails
from .problem import DTYPES as DTYPES
from .problem import HEAD_DIMS as HEAD_DIMS
from .problem import MAX_SEQ as MAX_SEQ
from .problem import Problem as Problem
from .problem import attended_keys, unpacked
from .problem import check_sizes as check_sizes
from .problem import visible_keys as visible_keys

LAYOUTS: Mapping[str, tuple[int, ...]] = {"bthd": (0, 1, 2, 3), "bhtd": (0, 2, 1, 3)}


def tolerance(problem: Any) -> Mapping[str, Tolerance]:
    """Tolerances of o and lse, used by every forward attention."""
    tf32 = getattr(problem, "precision", None) is Precision.TF32
    o_tolerance = tolerance_of(Reduction.SOFTMAX, Precision.TF32 if tf32 else problem.dtype)
    return {"o": o_tolerance, "lse": tolerance_of(Reduction.SUM, DType.FP32)}


def cost(problem: Problem) -> Cost:
    """D + DV multiply-adds per attended pair; every tensor is moved once. Packed sequences count as if their lengths
    were equal."""
    equal = unpacked(problem)
    pairs = equal.batch * equal.heads * int(np.sum(attended_keys(equal)))
    columns = problem.head_dim + problem.head_dim_v  # columns of q and o, or of k and v
    elements = problem.batch * columns * (problem.seq_q * problem.heads + problem.seq_k * problem.kv_heads)
    rows = problem.batch * problem.heads * problem.seq_q
    nbytes = problem.dtype.itemsize * elements + 4 * rows + 8 * problem.boundaries + 4 * problem.s_aux_heads
    return Cost(flops=2 * columns * pairs, bytes=nbytes, items=rows, item="query and head")


def flash_attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    s_aux: Any = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
    window_left: int = -1,
    window_right: int = -1,
    precision: str = "dtype",
    layout: str = "bthd",
) -> Request:
    """Exact attention: o = softmax(softmax_scale · q kᵀ) v. Returns (o, lse).

    q: [B, T, H, D]; k: [B, S, HK, D]; v: [B, S, HK, DV], where HK divides H (grouped queries: query head h reads head h
    · HK // H). With layout="bhtd": [B, H, T, D], [B, HK, S, D] and [B, HK, S, DV]. fp16, bf16 or fp32, the same for all
    three; D and DV are 8 to 256 in steps of 8. Strided views are used without a copy: the last dim must be contiguous,
    and every row must start at a multiple of 16 bytes.

    causal: query i attends only the keys j <= i + S - T (the last query attends all). A query without any key gets o =
    0 and lse = -inf. softmax_scale: positive, default D ** -0.5. softcap: if positive, scaled scores x become softcap ·
    tanh(x / softcap); 0 disables it.

    cu_seqlens_q, cu_seqlens_k: both int32 [N + 1], ascending from 0 to T and from 0 to S: B is 1, and sequence n
    consists of the rows entry n to entry n + 1 of q, and likewise of k and v; causal applies within a sequence. Lengths
    may differ and may be 0. The kernels read them on the device, so that other lengths need no new call signature.
    max_seqlen_q: upper bound on the queries of a sequence (default T); queries beyond it may be skipped, and a tight
    bound launches fewer idle blocks. Rows outside all sequences are not written; entries larger than T and S are
    clamped to them.

    s_aux: fp32 [H], one logit per head, added to the softmax denominator (an attention sink, as in gpt-oss): like the
    score of a key whose value is 0, neither scaled nor capped. It is included in lse, and is the lse of a query without
    any key. There must be keys.

    window_left, window_right: query i, whose own key is p = i + S - T, attends only the keys from p - window_left to p
    + window_right, where packed sequences use their own S and T; -1 is no limit. causal equals window_right = 0; both
    may be passed.

    precision: the precision of the operands of matrix products of fp32 tensors; sums are fp32. "dtype" keeps all bits;
    "tf32" rounds q, k, v and the probabilities to 11 significant bits, which needs a third of the products.

    o is [B, T, H, DV] in the layout and dtype of q; lse is fp32 [B, H, T], the natural logarithm of the sum of the
    exponentials: results for parts of the keys are merged with weights exp(lse_part - lse_total).

    Raises UsageError for an unknown layout, a scale that is not positive, a softcap below 0, a window below -1, and
    only one of the two cu_seqlens; InputError for arrays that do not fit.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r}: pass {' or '.join(LAYOUTS)}")
    scalars = given_scalars(softmax_scale, softcap)
    if (cu_seqlens_q is None) != (cu_seqlens_k is None):
        raise UsageError("cu_seqlens_q and cu_seqlens_k go together: pass both or neither")
    if max_seqlen_q is not None and (cu_seqlens_q is None or max_seqlen_q < 1):
        raise UsageError(f"max_seqlen_q {max_seqlen_q}: pass it with cu_seqlens_q, 1 or more")
    arrays = {"q": q, "k": k, "v": v}
    statics: dict[str, Any] = {"use_softcap": "softcap" in scalars, "precision": precision}
    statics |= masks(window_left, window_right, causal=causal)
    if s_aux is not None:
        arrays["s_aux"] = given_logits(s_aux, k, LAYOUTS[layout].index(1))
        statics["use_s_aux"] = True
    if cu_seqlens_q is not None:
        arrays |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        statics |= {"use_cu_seqlens": True, "max_seqlen_q": max_seqlen_q or 0}
    axes = dict.fromkeys(("q", "k", "v", "o"), LAYOUTS[layout])
    return Request(arrays, statics, scalars, axes)


def masks(window_left: int, window_right: int, *, causal: bool) -> dict[str, Any]:
    """The Problem fields that define which keys a query attends. Equivalent masks map to the same fields. Raises
    UsageError for a window below -1."""
    if min(window_left, window_right) < -1:
        raise UsageError(f"window_left {window_left}, window_right {window_right}: pass 0 or more, or -1 for no limit")
    causal = causal or window_right == 0
    if window_left < 0 and (causal or window_right < 0):
        return {"causal": causal}
    return {"causal": causal, "use_window": True, "window_left": window_left, "window_right": window_right}


OPERATOR = Operator(
    name="flash_attention",
    summary="softmax(scale · Q Kᵀ) V with exact tiles for every head_dim and head_dim_v from 8 to 256 in steps of 8",
    problem=Problem,
    arguments=(*ARGUMENTS, *OPTIONAL),
    inputs=optional_inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=flash_attention,
    gradient=Gradient(
        "flash_attention_backward",
        upstream={"o": "dout"},
        no_gradient={"precision": "the backward pass chooses its own"},
    ),
    folder=Path(__file__).parent,
)
