"""flash_attention, forward: O = softmax(scale · Q Kᵀ) V and the logarithm of each row's sum, for any head_dim."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.dtype import DType
from tuner.errors import UsageError
from tuner.operator import Argument, Array, Arrays, Cost, Operator, Request, Role, Tolerance, extent, static

HEAD_DIMS = tuple(range(8, 257, 8))
DTYPES = (DType.BF16, DType.FP16)
MAX_ROWS = 2**31 - 2**10  # of Q, over batch and heads: int32 in the kernels, with room for one tile more
MAX_SEQ = 2**30  # positions are int32 in the kernels, with room for one tile more

LAYOUTS: Mapping[str, tuple[int, ...]] = {"bthd": (0, 1, 2, 3), "bhtd": (0, 2, 1, 3)}


@dataclass(frozen=True, slots=True)
class Problem:
    """T = seq_q queries attend S = seq_k keys, per batch and head; heads / kv_heads query heads share a head of K, V.

    Causal is bottom-right aligned: query i attends the keys j <= i + S - T, so the last query attends every key.
    Raises UsageError for sizes that no kernel takes.
    """

    head_dim: int = static("D: elements of a head, 8 to 256 in steps of 8", default=128, choices=HEAD_DIMS)
    dtype: DType = static("of q, k, v and o", default=DType.BF16, choices=DTYPES)
    causal: bool = static("query i attends keys up to i + seq_k - seq_q only", default=False)
    batch: int = extent("B", default=4)
    heads: int = extent("H: query heads", default=16)
    kv_heads: int = extent("HK: heads of K and V, a divisor of heads (0: as many as heads)", default=0)
    seq_q: int = extent("T: queries", default=4096)
    seq_k: int = extent("S: keys (0: as many as queries)", default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "seq_k", self.seq_k or self.seq_q)
        check_sizes("flash_attention", self, DTYPES)


def check_sizes(operator: str, problem: Any, dtypes: tuple[DType, ...]) -> None:
    """Raises UsageError for a head_dim, dtype, number of heads or length that no kernel of `operator` takes."""
    if problem.head_dim not in HEAD_DIMS:
        raise UsageError(f"head_dim {problem.head_dim}: {operator} takes 8 to 256 in steps of 8")
    if problem.dtype not in dtypes:
        name = getattr(problem.dtype, "value", problem.dtype)
        raise UsageError(f"dtype {name}: {operator} takes {', '.join(d.value for d in dtypes)}")
    for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k"):
        if getattr(problem, name) < 1:
            raise UsageError(f"{name} {getattr(problem, name)}: {operator} takes 1 and more")
    if problem.heads % problem.kv_heads:
        raise UsageError(f"kv_heads {problem.kv_heads} does not divide heads {problem.heads}")
    if max(problem.seq_q, problem.seq_k) > MAX_SEQ or problem.batch * problem.heads * problem.seq_q > MAX_ROWS:
        raise UsageError(
            f"batch {problem.batch}, heads {problem.heads}, seq_q {problem.seq_q}, seq_k {problem.seq_k}: too large; "
            f"sequences go up to {MAX_SEQ}, batch · heads · seq_q up to {MAX_ROWS}"
        )


ARGUMENTS = (
    Argument("q", "dtype", ("batch", "seq_q", "heads", "head_dim"), strided=True, doc="rows 16-byte aligned"),
    Argument("k", "dtype", ("batch", "seq_k", "kv_heads", "head_dim"), strided=True, doc="rows 16-byte aligned"),
    Argument("v", "dtype", ("batch", "seq_k", "kv_heads", "head_dim"), strided=True, doc="rows 16-byte aligned"),
    Argument(
        "o",
        "dtype",
        ("batch", "seq_q", "heads", "head_dim"),
        Role.OUTPUT,
        strided=True,
        doc="rows 16-byte aligned; 0 where a query attends no key",
    ),
    Argument(
        "lse",
        DType.FP32,
        ("batch", "heads", "seq_q"),
        Role.OUTPUT,
        doc="natural logarithm of the sum of exp(scale · scores); -inf where a query attends no key",
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

INPUT_KINDS = ("normal", "large_logits", "equal_keys", "one_hot")


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """q, k, v of one kind, and the scale.

    normal: N(0, 1). large_logits: scores of standard deviation 50, so that one key takes nearly all. equal_keys: every
    visible key counts the same, so that o and lse give away a mask that is off by one. one_hot: query i finds the keys
    that equal i modulo head_dim, so that any confusion of rows or columns shows.
    """
    q = rng.standard_normal((problem.batch, problem.seq_q, problem.heads, problem.head_dim))
    k = rng.standard_normal((problem.batch, problem.seq_k, problem.kv_heads, problem.head_dim))
    v = rng.standard_normal(k.shape)
    if kind == "large_logits":
        q *= 50
    elif kind == "equal_keys":
        k[:] = k[:, :1]
    elif kind == "one_hot":
        q[:] = 16 * _one_hot(problem.seq_q, problem.head_dim)[None, :, None, :]
        k[:] = _one_hot(problem.seq_k, problem.head_dim)[None, :, None, :]
    elif kind != "normal":
        raise UsageError(f"inputs {kind!r}: flash_attention has {', '.join(INPUT_KINDS)}")
    dtype = problem.dtype.numpy
    scale = 1.0 if kind == "one_hot" else problem.head_dim**-0.5
    return {"q": q.astype(dtype), "k": k.astype(dtype), "v": v.astype(dtype), "softmax_scale": scale}


def _one_hot(rows: int, columns: int) -> Array:
    return np.eye(columns)[np.arange(rows) % columns]


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, H, D] and lse [B, H, T] in float64."""
    return attention(problem, arrays, _visible(problem), rounded=False)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The reference with the probabilities and o rounded to the dtype, as the kernels round them."""
    return attention(problem, arrays, _visible(problem), rounded=True)


def attention(problem: Any, arrays: Arrays, visible: Array, *, rounded: bool) -> Arrays:
    """o and lse in float64, where query i attends the keys j with visible[i, j]; `visible` is boolean [T, S]."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    scale = arrays.get("softmax_scale", problem.head_dim**-0.5)
    group = problem.heads // problem.kv_heads
    o = np.zeros((problem.batch, problem.seq_q, problem.heads, problem.head_dim))
    lse = np.zeros((problem.batch, problem.heads, problem.seq_q))
    for b, h in np.ndindex(problem.batch, problem.heads):
        scores = scale * q[b, :, h] @ k[b, :, h // group].T
        masked = np.where(visible, scores, -np.inf)
        o[b, :, h], lse[b, h] = _softmax_product(masked, v[b, :, h // group], problem.dtype if rounded else None)
    return {"o": _round(o, problem.dtype) if rounded else o, "lse": lse}


def _softmax_product(scores: Array, v: Array, rounded: DType | None) -> tuple[Array, Array]:
    """Softmax of scores [T, S] times v [S, D], and the logarithms of the sums [T]; P is rounded to a dtype if given."""
    peak = np.max(scores, axis=1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = np.sum(p, axis=1, keepdims=True)
    product = (_round(p, rounded) if rounded else p) @ v
    with np.errstate(divide="ignore"):
        lse = np.where(np.isfinite(peak), peak, 0) + np.log(total)
    return np.divide(product, total, out=np.zeros_like(product), where=total > 0), lse[:, 0]


def _round(x: Array, dtype: DType) -> Array:
    return x.astype(dtype.numpy).astype(np.float64)


def _visible(problem: Problem) -> Array:
    """Whether each query attends each key: bool [T, S]."""
    visible: Array = np.arange(problem.seq_k) < visible_keys(problem)[:, None]
    return visible


def visible_keys(problem: Problem) -> Array:
    """How many keys each query attends, from key 0 on: int64 [T]."""
    if not problem.causal:
        return np.full(problem.seq_q, problem.seq_k, np.int64)
    last = np.arange(problem.seq_q, dtype=np.int64) + problem.seq_k - problem.seq_q
    return np.clip(last + 1, 0, problem.seq_k)


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    """o to the rounding of its dtype; lse to that of fp32 sums and of the ex2 and lg2 units."""
    return {"o": Tolerance(4e-3 if problem.dtype is DType.BF16 else 5e-4), "lse": Tolerance(1e-5)}


def cost(problem: Problem) -> Cost:
    """Two multiply-adds an element of D and an attended pair; every tensor once."""
    pairs = problem.batch * problem.heads * int(np.sum(visible_keys(problem)))
    elements = problem.batch * problem.head_dim * (problem.seq_q * problem.heads + problem.seq_k * problem.kv_heads)
    rows = problem.batch * problem.heads * problem.seq_q
    nbytes = 2 * problem.dtype.itemsize * elements + 4 * rows
    return Cost(flops=4 * problem.head_dim * pairs, bytes=nbytes, items=rows, item="query and head")


def tails(problem: Problem) -> tuple[Problem, ...]:
    """One row; both sequences off every tile size; more queries than keys (causal: rows that attend none); GQA."""
    shapes = (
        (1, 1, 1, 1, 1),
        (1, 2, 1, 1, 77),
        (1, 1, 1, 63, 200),
        (1, 1, 1, 200, 63),
        (2, 4, 2, 130, 130),
    )
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_k")
    extents: list[dict[str, Any]] = [dict(zip(names, shape, strict=True)) for shape in shapes]
    return tuple(replace(problem, **sizes) for sizes in extents)


def flash_attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, softmax_scale: float | None = None, layout: str = "bthd"
) -> Request:
    """Exact attention: o = softmax(softmax_scale · q kᵀ) v. Returns (o, lse).

    q: [B, T, H, D]; k, v: [B, S, HK, D], where HK divides H (grouped queries: query head h reads head h · HK // H).
    With layout="bhtd": [B, H, T, D] and [B, HK, S, D]. fp16 or bf16, the same for all three; D is 8 to 256 in steps of
    8. Views are taken as they are: the last dim is contiguous and every row starts at a multiple of 16 bytes.

    causal: query i attends the keys j <= i + S - T only (the last query attends all). A query without any key gets
    o = 0 and lse = -inf. softmax_scale: positive, default D ** -0.5.

    o has the shape, layout and dtype of q; lse is fp32 [B, H, T], the natural logarithm of the sum of the
    exponentials: results over parts of the keys merge with weights exp(lse_part - lse_total).

    Raises UsageError for an unknown layout or a scale that is not positive, and InputError for arrays that do not fit.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r}: give {' or '.join(LAYOUTS)}")
    if softmax_scale is not None and not 0 < softmax_scale < float("inf"):
        raise UsageError(f"softmax_scale {softmax_scale}: must be positive and finite")
    scalars = {} if softmax_scale is None else {"softmax_scale": softmax_scale}
    axes = dict.fromkeys(("q", "k", "v", "o"), LAYOUTS[layout])
    return Request({"q": q, "k": k, "v": v}, {"causal": causal}, scalars, axes)


OPERATOR = Operator(
    name="flash_attention",
    summary="softmax(scale · Q Kᵀ) V with exact tiles for every head_dim from 8 to 256 in steps of 8",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=flash_attention,
    folder=Path(__file__).parent,
)
