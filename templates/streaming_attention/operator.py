"""streaming_attention, forward: a query attends the first keys (sinks) and the last up to its own (a window)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.dtype import DType
from tuner.errors import UsageError
from tuner.operator import Argument, Array, Arrays, Cost, Operator, Request, Role, Tolerance, extent, static

from ..flash_attention import operator as dense

DTYPES = (*dense.DTYPES, DType.FP32)


@dataclass(frozen=True, slots=True)
class Problem:
    """The last T of S positions attend keys, per batch and head; heads / kv_heads query heads share a head of K, V.

    The query at position p attends the keys j <= p with j < sinks or p - j < window: its own key counts as one of the
    window, and none counts twice. Query i is at p = i + S - T, and attends nothing where that is negative.

    A rolling cache keeps `slots` keys: that at position j lies in slot j while there is room, and from then on in slot
    sinks + (j - sinks) mod (slots - sinks). Otherwise every key is in its own slot.
    Raises UsageError for sizes that no kernel takes.
    """

    head_dim: int = static("D: elements of a head, 8 to 256 in steps of 8", default=128, choices=dense.HEAD_DIMS)
    dtype: DType = static("of q, k, v and o", default=DType.BF16, choices=DTYPES)
    rolling: bool = static("k and v are a cache that wraps around behind its sinks", default=False)
    batch: int = extent("B", default=1)
    heads: int = extent("H: query heads", default=32)
    kv_heads: int = extent("HK: heads of K and V, a divisor of heads (0: as many as heads)", default=0)
    seq_q: int = extent("T: queries", default=16384)
    seq_k: int = extent("S: positions so far (0: as many as slots, or as queries)", default=0)
    slots: int = extent("keys that k and v hold (0: all; rolling: no more than are attended)", default=0)
    window: int = extent("W: keys that a query attends up to its own, 1 and more", default=1024)
    sinks: int = extent("keys from the first on that every query attends as well, 0 and more", default=4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "seq_k", self.seq_k or self.slots or self.seq_q)
        object.__setattr__(self, "slots", self.slots or (min(self.seq_k, self.reach) if self.rolling else self.seq_k))
        dense.check_sizes("streaming_attention", self, DTYPES)
        for name, least in (("window", 1), ("sinks", 0)):
            if not least <= getattr(self, name) <= dense.MAX_SEQ:
                raise UsageError(f"{name} {getattr(self, name)}: streaming_attention takes {least} to {dense.MAX_SEQ}")
        self._check_slots()

    def _check_slots(self) -> None:
        if not self.rolling and self.slots != self.seq_k:
            raise UsageError(f"slots {self.slots}: as many as seq_k {self.seq_k}, unless the cache is rolling")
        if not min(self.seq_k, self.reach) <= self.slots <= dense.MAX_SEQ:
            raise UsageError(
                f"slots {self.slots}: {self.seq_q} queries with window {self.window} and {self.sinks} sinks attend "
                f"{min(self.seq_k, self.reach)} of {self.seq_k} keys, and all of them must be in the cache"
            )

    @property
    def reach(self) -> int:
        """Keys that all queries together attend, where there are that many."""
        return self.sinks + self.window + self.seq_q - 1


_SCALARS = ("slots", "window", "sinks")
_CACHED = dict.fromkeys(("k", "v"), ("batch", "slots", "kv_heads", "head_dim"))

ARGUMENTS = (
    *(replace(each, dims=_CACHED.get(each.name, each.dims)) for each in dense.ARGUMENTS),
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in _SCALARS),
)


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """What flash_attention draws for as many keys, put into the slots of the cache in the order of their positions."""
    drawn = dense.inputs(problem, rng, kind)  # type: ignore[arg-type]  # of which it reads the sizes
    return drawn | {name: _cached(problem, drawn[name]) for name in ("k", "v")}


def _cached(problem: Problem, keys: Array) -> Array:
    """The slots [B, slots, HK, D] after all keys [B, S, HK, D] were written, later ones over earlier ones."""
    kept = np.full(problem.slots, -1)
    np.maximum.at(kept, slots(problem), np.arange(problem.seq_k))
    cache = np.full((problem.batch, problem.slots, *keys.shape[2:]), np.nan, keys.dtype)
    cache[:, kept >= 0] = keys[:, kept[kept >= 0]]
    return cache


def slots(problem: Problem) -> Array:
    """The slot of each position: int64 [S]."""
    position = np.arange(problem.seq_k)
    wrapped = problem.sinks + (position - problem.sinks) % max(problem.slots - problem.sinks, 1)
    return np.where(position < problem.slots, position, wrapped)


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, H, D] and lse [B, H, T] in float64, over all pairs of queries and keys."""
    return _attention(problem, arrays, rounded=False)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The reference with the probabilities and o rounded to the dtype, as the kernels round them."""
    return _attention(problem, arrays, rounded=True)


def _attention(problem: Problem, arrays: Arrays, *, rounded: bool) -> Arrays:
    by_position = {name: np.nan_to_num(arrays[name][:, slots(problem)]) for name in ("k", "v")}
    return dense.attention(problem, arrays | by_position, attends(problem), rounded=rounded)


def attends(problem: Problem) -> Array:
    """Whether each query attends the key at each position: bool [T, S]."""
    position = positions(problem)[:, None]
    key = np.arange(problem.seq_k)
    found: Array = (key <= position) & ((key < problem.sinks) | (position - key < problem.window))
    return found


def positions(problem: Problem) -> Array:
    """Of the queries: int64 [T]."""
    return np.arange(problem.seq_q, dtype=np.int64) + problem.seq_k - problem.seq_q


def attended_keys(problem: Problem) -> Array:
    """How many keys each query attends: int64 [T]."""
    return np.clip(positions(problem) + 1, 0, problem.window + problem.sinks)


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    """o to the rounding of its dtype; lse to that of fp32 sums and of the ex2 and lg2 units."""
    of_o = {DType.BF16: 4e-3, DType.FP16: 5e-4, DType.FP32: 2e-5}
    return {"o": Tolerance(of_o[problem.dtype]), "lse": Tolerance(1e-5)}


def cost(problem: Problem) -> Cost:
    """Two multiply-adds an element of D and an attended pair; every tensor once, of K and V the keys attended."""
    pairs = problem.batch * problem.heads * int(np.sum(attended_keys(problem)))
    keys = min(problem.seq_k, problem.reach)
    elements = problem.batch * problem.head_dim * (problem.seq_q * problem.heads + keys * problem.kv_heads)
    rows = problem.batch * problem.heads * problem.seq_q
    nbytes = 2 * problem.dtype.itemsize * elements + 4 * rows
    return Cost(flops=4 * problem.head_dim * pairs, bytes=nbytes, items=rows, item="query and head")


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Windows and sinks on every side of a tile: see the comments."""
    shapes = (
        (1, 1, 1, 1, 1, 1, 0),  # one query, one key
        (1, 4, 2, 3, 300, 40, 5),  # a step of decoding
        (1, 1, 1, 200, 63, 30, 4),  # more queries than positions: some attend nothing
        (1, 1, 1, 150, 200, 17, 0),  # a window alone
        (1, 2, 1, 130, 130, 1000, 3),  # a window over everything
        (1, 1, 1, 100, 190, 20, 150),  # sinks that reach into the window of some queries
        (2, 2, 1, 90, 280, 70, 20),  # tiles between the sinks and the window that nobody attends
        (1, 1, 1, 70, 70, 1, 70),  # every key a sink
    )
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "window", "sinks")
    extents: list[dict[str, Any]] = [dict(zip(names, shape, strict=True)) for shape in shapes]
    return tuple(replace(problem, slots=0, **sizes) for sizes in extents)


def streaming_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    window: int,
    sinks: int = 0,
    seq_k: int | None = None,
    softmax_scale: float | None = None,
    layout: str = "bthd",
) -> Request:
    """Attention to the first `sinks` keys and the last `window` ones. Returns (o, lse).

    The query at position p attends the keys j <= p with j < sinks or p - j < window: the window counts p itself, and no
    key counts twice. sinks=0 is a sliding window, window >= S causal attention. Positions count from the first key;
    query i of T is at p = i + S - T, so that the last one attends the last key. Where p is negative, o = 0 and
    lse = -inf.

    q: [B, T, H, D]; k, v: [B, S, HK, D], where HK divides H (grouped queries: query head h reads head h · HK // H).
    With layout="bhtd": [B, H, T, D] and [B, HK, S, D]. fp16, bf16 or fp32, the same for all three; D is 8 to 256 in
    steps of 8. Views are taken as they are: the last dim is contiguous and every row starts at a multiple of 16 bytes.
    softmax_scale: positive, default D ** -0.5.

    A rolling cache is told by `seq_k`, the number of positions so far, those of q among them. Then k and v hold R slots
    instead of S keys: position j in slot j if j < R, else in sinks + (j - sinks) mod (R - sinks), where R is at least
    the smaller of S and sinks + window + T - 1. The caller writes the keys of q there first. Keys that depend on their
    position, as with rotary embeddings, are taken as they were written.

    o has the shape, layout and dtype of q; lse is fp32 [B, H, T], the natural logarithm of the sum of the
    exponentials.

    Raises UsageError for an unknown layout, and a scale or seq_k that is not positive, InputError for arrays that do
    not fit.
    """
    request = dense.flash_attention(q, k, v, softmax_scale=softmax_scale, layout=layout)
    if seq_k is not None and seq_k < 1:
        raise UsageError(f"seq_k {seq_k}: give the number of positions so far, those of q among them")
    rolling = {} if seq_k is None else {"rolling": True, "seq_k": seq_k}
    return replace(request, statics={"window": window, "sinks": sinks, **rolling})


OPERATOR = Operator(
    name="streaming_attention",
    summary="attention to the first keys and a sliding window, in time and memory linear in the length",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=dense.INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=streaming_attention,
    folder=Path(__file__).parent,
)
