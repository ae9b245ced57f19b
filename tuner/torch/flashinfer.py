"""Attention with the signatures of FlashInfer 0.6, so that swapping is one import.

    from tuner import flashinfer

Queries are [T, H, D]. Keys, values and pages are NHD (rows before heads) or HND. As in FlashInfer, causal and windows
are aligned at a sequence's last query and key, and lse [T, H] is a base-2 logarithm.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch.flash import flash_attn_func, flash_attn_varlen_func
from tuner.torch.unsupported_arguments import refuse

_THEIRS = "flashinfer's"
_LAYOUTS = ("NHD", "HND")
# hints on how FlashInfer's kernels run, which change no result
_HINTS = (
    *("backend", "block_tables", "disable_split_kv", "enable_pdl", "fixed_split_size", "jit_args", "kv_data_type"),
    *(
        "data_type",
        "max_sequence_kv",
        "max_token_per_sequence",
        "non_blocking",
        "q_data_type",
        "seq_lens",
        "seq_lens_q",
    ),
    *("use_fp16_qk_reduction", "use_tensor_cores", "window_left", "kv_lens_arr_host"),
)


def single_prefill_with_kv_cache(
    q: Any,
    k: Any,
    v: Any,
    scale_q: Any = None,
    scale_k: Any = None,
    scale_v: Any = None,
    o_dtype: Any = None,
    custom_mask: Any = None,
    packed_custom_mask: Any = None,
    causal: bool = False,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,  # noqa: ARG001  # sums are fp32
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",  # noqa: ARG001  # the tuner's to choose
    return_lse: bool = False,
) -> Any:
    """softmax(sm_scale · q kᵀ) v of one sequence. Returns o [T, H, DV], and with return_lse (o, lse [T, H]).

    k: [S, HK, D] and v: [S, HK, DV] in NHD, [HK, S, ·] in HND; window_left: number of keys before a query's own, -1 for
    all.

    Raises InputError for custom masks, position encodings and scales of 8-bit tensors, which are not supported.
    """
    unserved = {"scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v, "custom_mask": custom_mask}
    unserved |= {"packed_custom_mask": packed_custom_mask, "rope_scale": rope_scale, "rope_theta": rope_theta}
    unserved |= {"o_dtype": None if o_dtype == q.dtype else o_dtype}
    _refuse("single_prefill_with_kv_cache", pos_encoding_mode, unserved)
    k, v = (_rows_first(x, kv_layout, heads=0) for x in (k, v))
    options = _options(sm_scale, window_left, logits_soft_cap, causal=causal)
    o, lse = flash_attn_func(q[None], k[None], v[None], **options, return_softmax_lse=True)
    return _returned(o[0], lse[0], return_lse=return_lse)


def single_decode_with_kv_cache(
    q: Any,
    k: Any,
    v: Any,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False,  # noqa: ARG001
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    return_lse: bool = False,
) -> Any:
    """`single_prefill_with_kv_cache` for one query, q [H, D]. Returns o [H, D], and with return_lse (o, lse [H])."""
    rope = {"rope_scale": rope_scale, "rope_theta": rope_theta}
    _refuse("single_decode_with_kv_cache", pos_encoding_mode, rope)
    scale = _scale(sm_scale, q.shape[-1], q_scale, k_scale)
    limits: dict[str, Any] = {"window_left": window_left, "logits_soft_cap": logits_soft_cap}
    o, lse = single_prefill_with_kv_cache(
        q[None], k, v, kv_layout=kv_layout, causal=True, sm_scale=scale, **limits, return_lse=True
    )
    o = _scaled(o[0], v_scale)
    return (o, lse[0]) if return_lse else o


class _Wrapper:
    """Base of the wrappers: a plan for batches of the same lengths, which `run` executes any number of times."""

    def __init__(
        self, float_workspace_buffer: Any, kv_layout: str = "NHD", use_cuda_graph: bool = False, **buffers: Any
    ) -> None:
        del float_workspace_buffer, buffers  # kernels need no workspace
        _check_layout(kv_layout)
        if use_cuda_graph:
            raise InputError(
                f"{type(self).__name__}: use_cuda_graph=True is not supported, since a plan makes new tensors: capture "
                "flash_attn_with_kvcache, which reads lengths and pages on the device"
            )
        self._layout = kv_layout
        self._options: dict[str, Any] = {}
        self._sizes: tuple[int, int, int] = (0, 0, 0)
        self._tensors: tuple[Any, ...] = ()
        self._page_size = 0

    def _plan(self, sizes: tuple[int, int, int], options: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        """Check the sizes: query heads, key heads, and head_dim."""
        encoding = others.get("pos_encoding_mode", "NONE")
        named = {name: value for name, value in others.items() if name not in (*_HINTS, "pos_encoding_mode")}
        _refuse(f"{type(self).__name__}.plan", encoding, named)
        self._sizes, self._options = sizes, dict(options)

    def _planned(self, device: Any) -> tuple[Any, ...]:
        """Return the plan's tensors on the device of the queries."""
        if not self._tensors:
            raise InputError(f"{type(self).__name__}.run: there is no plan: call plan() first")
        self._tensors = tuple(x.to(device) for x in self._tensors)
        return self._tensors

    def _run(self, q: Any, k: Any, v: Any, bounds: Any, others: Mapping[str, Any], **pages: Any) -> Any:
        name = f"{type(self).__name__}.run"
        scales = {scale: others.get(scale) for scale in ("q_scale", "k_scale", "v_scale")}
        served = (*scales, *_HINTS, "window_left", "out", "lse", "return_lse", "sinks")
        refuse(name, {key: value for key, value in others.items() if key not in served}, _THEIRS)
        heads, kv_heads, head_dim = self._sizes
        if (q.shape[1], k.shape[-2], q.shape[2]) != self._sizes:
            raise InputError(
                f"{name}: q {[*q.shape]} and {k.shape[-2]} heads of keys, but the plan is for {heads} and {kv_heads} "
                f"heads of {head_dim} elements"
            )
        options = dict(self._options)
        window = others.get("window_left")
        left = options.pop("window_left") if window is None else window
        causal, cap = options.pop("causal"), options.pop("logits_soft_cap")
        scale = _scale(options.pop("sm_scale"), head_dim, scales["q_scale"], scales["k_scale"])
        options |= {**pages, **_options(scale, left, cap, causal=causal), "s_aux": others.get("sinks")}
        o, lse = flash_attn_varlen_func(q, k, v, bounds, **options, return_softmax_lse=True)
        o = _scaled(o, scales["v_scale"])
        return _returned(o, lse, others.get("out"), others.get("lse"), return_lse=bool(others.get("return_lse")))


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    """Packed sequences of queries and of keys."""

    def plan(
        self,
        qo_indptr: Any,
        kv_indptr: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,  # noqa: ARG002  # that of v
        custom_mask: Any = None,
        packed_custom_mask: Any = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,  # noqa: ARG002
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = None,  # noqa: ARG002
        kv_data_type: Any = None,  # noqa: ARG002
        **others: Any,
    ) -> None:
        """qo_indptr, kv_indptr: integers [N + 1], the offsets of the sequences. Other arguments are those of
        `single_prefill_with_kv_cache`; hints that change no result are ignored.
        """
        others |= {"custom_mask": custom_mask, "packed_custom_mask": packed_custom_mask}
        others |= {"pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale, "rope_theta": rope_theta}
        options = {"causal": causal, "window_left": window_left, "logits_soft_cap": logits_soft_cap}
        lengths = {"max_seqlen_q": _longest(qo_indptr), "max_seqlen_k": _longest(kv_indptr), "sm_scale": sm_scale}
        self._plan((num_qo_heads, num_kv_heads, head_dim_qk), options | lengths, others)
        self._tensors = qo_indptr, kv_indptr

    def run(self, q: Any, k: Any, v: Any, **others: Any) -> Any:
        """Return o [T, H, DV], and with return_lse (o, lse [T, H]), for k and v [S, HK, ·]."""
        bounds, of_keys = self._planned(q.device)
        return self._run(q, k, v, bounds, others, cu_seqlens_k=of_keys)

    begin_forward = plan


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Packed sequences of queries, whose keys are in pages."""

    def plan(
        self,
        qo_indptr: Any,
        paged_kv_indptr: Any,
        paged_kv_indices: Any,
        paged_kv_last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,  # noqa: ARG002
        custom_mask: Any = None,
        packed_custom_mask: Any = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,  # noqa: ARG002
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = None,  # noqa: ARG002
        kv_data_type: Any = None,  # noqa: ARG002
        **others: Any,
    ) -> None:
        """The pages of sequence n are paged_kv_indices[paged_kv_indptr[n] : paged_kv_indptr[n + 1]]. The last of them
        has paged_kv_last_page_len[n] keys, including those of the queries. A window requires causal if a sequence has
        several queries.
        """
        others |= {"custom_mask": custom_mask, "packed_custom_mask": packed_custom_mask}
        others |= {"pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale, "rope_theta": rope_theta}
        options = {"causal": causal, "window_left": window_left, "logits_soft_cap": logits_soft_cap}
        options |= {"sm_scale": sm_scale, "max_seqlen_q": _longest(qo_indptr)}
        self._plan((num_qo_heads, num_kv_heads, head_dim_qk), options, others)
        pages = _pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        self._tensors, self._page_size = (qo_indptr, *pages), page_size

    def run(self, q: Any, paged_kv_cache: Any, **others: Any) -> Any:
        """Return o [T, H, D], and with return_lse (o, lse [T, H]). paged_kv_cache: (k_cache, v_cache), both [pages,
        page_size, HK, D] in NHD, [pages, HK, page_size, D] in HND; or one tensor with K and V in a second dim of size
        two.
        """
        bounds, table, lengths = self._planned(q.device)
        both = paged_kv_cache if isinstance(paged_kv_cache, (tuple, list)) else paged_kv_cache.unbind(1)
        k, v = (_rows_first(cache, self._layout, heads=1) for cache in both)
        if k.shape[1] != self._page_size:
            raise InputError(
                f"{type(self).__name__}.run: pages of {k.shape[1]} rows, but the plan is for {self._page_size}"
            )
        return self._run(q, k, v, bounds, others, block_table=table, seqused_k=lengths)

    begin_forward = plan


class BatchDecodeWithPagedKVCacheWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """One query per sequence, whose keys are in pages."""

    def plan(  # type: ignore[override]  # as FlashInfer has it
        self,
        indptr: Any,
        indices: Any,
        last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **others: Any,
    ) -> None:
        """See `BatchPrefillWithPagedKVCacheWrapper`."""
        bounds = torch.arange(last_page_len.shape[0] + 1, dtype=torch.int32, device=last_page_len.device)
        heads = num_qo_heads, num_kv_heads, head_dim
        super().plan(bounds, indptr, indices, last_page_len, *heads, page_size, causal=True, **others)

    begin_forward = plan  # type: ignore[assignment]


def merge_state(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> tuple[Any, Any]:
    """Combine attention over two sets of keys: v [T, H, D] and s [T, H], to base 2. Returns (v, s)."""
    return merge_states(torch.stack([v_a, v_b], dim=1), torch.stack([s_a, s_b], dim=1))


def merge_state_in_place(v: Any, s: Any, v_other: Any, s_other: Any, mask: Any = None) -> None:
    """`merge_state` in place, into v and s; mask: bool [T], True where states are merged."""
    merged, sums = merge_state(v, s, v_other, s_other)
    if mask is not None:
        merged, sums = torch.where(mask[:, None, None], merged, v), torch.where(mask[:, None], sums, s)
    v.copy_(merged)
    s.copy_(sums)


def merge_states(v: Any, s: Any) -> tuple[Any, Any]:
    """`merge_state` over n sets of keys: v [T, n, H, D] and s [T, n, H]. Returns (v [T, H, D], s [T, H])."""
    s = s.float()
    largest = s.amax(dim=1, keepdim=True)
    largest = torch.where(largest.isinf(), 0, largest)  # a query without keys has v = 0 and s = -inf
    weights = (s - largest).exp2()
    total = weights.sum(dim=1)
    merged = (v.float() * weights[..., None]).sum(dim=1) / torch.where(total > 0, total, 1)[..., None]
    return merged.to(v.dtype), total.log2() + largest[:, 0]


# ---- arguments ----


def _refuse(function: str, pos_encoding_mode: str, unserved: Mapping[str, Any]) -> None:
    encoding = {"pos_encoding_mode": None if pos_encoding_mode == "NONE" else pos_encoding_mode}
    refuse(function, {**encoding, **unserved}, _THEIRS)


def _check_layout(kv_layout: str) -> None:
    if kv_layout not in _LAYOUTS:
        raise InputError(f"kv_layout {kv_layout!r}: give {' or '.join(map(repr, _LAYOUTS))}")


def _rows_first(x: Any, kv_layout: str, heads: int) -> Any:
    """Return keys, or pages of them, with rows before heads; `heads`: the dim of the heads in HND."""
    _check_layout(kv_layout)
    return x.transpose(heads, heads + 1) if kv_layout == "HND" else x


def _options(sm_scale: float | None, window_left: int, soft_cap: float | None, *, causal: bool) -> dict[str, Any]:
    window = (window_left, 0 if causal else -1)
    return {"softmax_scale": sm_scale, "causal": causal, "window_size": window, "softcap": soft_cap or 0.0}


def _scale(sm_scale: float | None, head_dim: int, q_scale: float | None, k_scale: float | None) -> float | None:
    """Return sm_scale times the scales of 8-bit queries and keys."""
    if q_scale is None and k_scale is None:
        return sm_scale
    scale = head_dim**-0.5 if sm_scale is None else sm_scale
    return float(scale * (1.0 if q_scale is None else q_scale) * (1.0 if k_scale is None else k_scale))


def _scaled(o: Any, v_scale: float | None) -> Any:
    return o if v_scale is None else (o.float() * v_scale).to(o.dtype)


def _longest(bounds: Any) -> int:
    return max(1, int(bounds.diff().max())) if bounds.shape[0] > 1 else 1


def _pages(indptr: Any, indices: Any, last_page_len: Any, page_size: int) -> tuple[Any, Any]:
    """Return a page table int32 [N, max_pages], and lengths int32 [N]."""
    counts = indptr.diff()
    columns = torch.arange(_longest(indptr), device=indptr.device)
    index = (indptr[:-1, None] + columns).clamp(max=max(indices.shape[0] - 1, 0))
    own = indices if indices.shape[0] else indices.new_zeros(1)
    table = own.to(torch.int32)[index.to(own.device)]
    lengths = (counts - 1) * page_size + last_page_len.to(counts.device)
    return table, torch.where(counts > 0, lengths, 0).to(torch.int32)


def _returned(o: Any, lse: Any, out: Any = None, out_lse: Any = None, *, return_lse: bool) -> Any:
    o = o if out is None else out.copy_(o)
    if not return_lse:
        return o
    lse = lse.T * (1 / math.log(2))
    return o, lse if out_lse is None else out_lse.copy_(lse)
