"""Tests of the calls of serving engines: vLLM's, SGLang's, FlashAttention-3's and FlashMLA's.

A batch of four requests: one in the middle of its prompt, two that decode, and one that a CUDA graph padded. Every call
is checked against attention written down in float64.
"""

from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import InputError, UsageError  # noqa: E402
from tuner.torch import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
    get_mla_metadata,
)

H, HK = 4, 2
LENGTHS = (45, 17, 1, 0)  # positions of each request, those of its queries among them
QUERIES = (5, 1, 1, 0)
ROOM = 96


class Cache:
    """Keys and values of the requests in pages of any size, dealt out at random; pages nobody has are NaN."""

    def __init__(self, page: int, D: int, layout: str = "apart", dtype: Any = torch.float16) -> None:
        torch.manual_seed(page + D)
        self.D, self.max_pages = D, -(-ROOM // page)
        pages = len(LENGTHS) * self.max_pages
        if layout == "apart":
            both = torch.full((2, pages, page, HK, D), torch.nan, dtype=dtype).unbind(0)
        elif layout == "interleaved":  # of a page K, then V: what hybrid models share with their states
            both = torch.full((pages, 2, page, HK, D), torch.nan, dtype=dtype).unbind(1)
        else:  # heads before rows
            both = [cache.transpose(1, 2) for cache in torch.full((2, pages, HK, page, D), torch.nan, dtype=dtype)]
        self.k, self.v = both
        self.table = torch.randperm(pages).view(len(LENGTHS), self.max_pages).int()
        self.keys, self.values = (torch.randn(len(LENGTHS), ROOM, HK, D).to(dtype) for _ in range(2))
        for b, length in enumerate(LENGTHS):
            for j in range(length):
                at = int(self.table[b, j // page]), j % page
                self.k[at], self.v[at] = self.keys[b, j], self.values[b, j]
            self.table[b, -(-length // page) :] = 2**30  # garbage, which no kernel reads

    def attention(
        self, q: Any, b: int, *, left: int = -1, softcap: float = 0.0, sinks: Any = None, scale: float | None = None
    ) -> tuple[Any, Any]:
        """o [T, H, D] and lse [H, T] of request b, whose queries q [T, H, D] are its last positions."""
        n = LENGTHS[b]
        k, v = (cache[b, :n].double().repeat_interleave(H // HK, 1) for cache in (self.keys, self.values))
        scores = torch.einsum("thd,shd->hts", q.double(), k) * (scale or self.D**-0.5)
        scores = softcap * (scores / softcap).tanh() if softcap else scores
        distance = torch.arange(len(q))[:, None] + n - len(q) - torch.arange(n)
        hidden = (distance < 0) | ((distance > left) if left >= 0 else False)
        scores = scores.masked_fill(hidden, -torch.inf)
        logits = torch.full((H,), -torch.inf) if sinks is None else sinks
        every = torch.cat([scores, logits.double()[:, None, None].expand(-1, len(q), 1)], dim=2)
        return torch.einsum("hts,shd->thd", every.softmax(-1)[..., :-1], v), every.logsumexp(-1)


def queries(cache: Cache) -> tuple[Any, Any]:
    """q [T, H, D] of all requests, and where those of each begin."""
    bounds = torch.tensor([0, *torch.tensor(QUERIES).cumsum(0).tolist()], dtype=torch.int32)
    return torch.randn(sum(QUERIES), H, cache.D).to(cache.k.dtype), bounds


def assert_right(o: Any, cache: Cache, q: Any, bounds: Any, lse: Any = None, **options: Any) -> None:
    for b, (first, end) in enumerate(pairwise(bounds.tolist())):
        if end > first:
            exact, sums = cache.attention(q[first:end], b, **options)
            assert torch.allclose(o[first:end].double(), exact, atol=5e-3)
            if lse is not None:
                assert torch.allclose(lse[:, first:end].double(), sums, atol=2e-3)


@pytest.mark.parametrize("page", [16, 24, 48, 64, 272, 528])
@pytest.mark.parametrize("layout", ["apart", "interleaved", "heads_first"])
def test_vllms_call_for_a_batch_of_prompts_and_steps(page: int, layout: str) -> None:
    """`FlashAttentionImpl.forward` of vLLM 0.11; the output is a part of a buffer for padded batches."""
    cache = Cache(page, 64, layout)
    query, bounds = queries(cache)
    output, seqused_k = torch.full((16, H, 64), 7.0).half(), torch.tensor(LENGTHS, dtype=torch.int32)
    num_actual_tokens = sum(QUERIES)
    result = flash_attn_varlen_func(
        q=query[:num_actual_tokens],
        k=cache.k,
        v=cache.v,
        out=output[:num_actual_tokens],
        cu_seqlens_q=bounds,
        max_seqlen_q=max(QUERIES),
        seqused_k=seqused_k,
        max_seqlen_k=max(LENGTHS),
        softmax_scale=0.1,
        causal=True,
        alibi_slopes=None,
        window_size=[-1, -1],
        block_table=cache.table,
        softcap=0,
        scheduler_metadata=None,
        fa_version=3,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        num_splits=0,
        s_aux=None,
    )
    assert result.data_ptr() == output.data_ptr()
    assert_right(output, cache, query, bounds, scale=0.1)
    assert (output[num_actual_tokens:] == 7).all()


@pytest.mark.parametrize("D", [64, 72, 100])
def test_vllms_call_for_a_model_with_sinks_and_windows(D: int) -> None:
    """gpt-oss: layers with a window of 128 and with all keys, and a learned logit a head in bf16."""
    cache = Cache(16, D, dtype=torch.bfloat16)
    query, bounds = queries(cache)
    sinks, output = torch.randn(H).bfloat16(), torch.empty_like(query)
    for window in ([-1, -1], [15, 0]):
        _, lse = flash_attn_varlen_func(
            q=query,
            k=cache.k,
            v=cache.v,
            out=output,
            cu_seqlens_q=bounds,
            max_seqlen_q=max(QUERIES),
            seqused_k=torch.tensor(LENGTHS, dtype=torch.int32),
            max_seqlen_k=max(LENGTHS),
            softmax_scale=D**-0.5,
            causal=True,
            window_size=window,
            block_table=cache.table,
            softcap=0.0,
            scheduler_metadata=torch.zeros(9, dtype=torch.int32),
            fa_version=3,
            num_splits=1,
            s_aux=sinks,
            return_softmax_lse=True,
            cp_world_size=1,
            cp_rank=0,
            cp_tot_seqused_k=None,
        )
        options = {"sinks": sinks, "left": window[0]}
        exact = [cache.attention(query[a:b], n, **options) for n, (a, b) in enumerate(((0, 5), (5, 6), (6, 7)))]
        assert torch.allclose(output.double(), torch.cat([tensor[0] for tensor in exact]), atol=3e-2)
        assert torch.allclose(lse.double(), torch.cat([tensor[1] for tensor in exact], 1), atol=2e-2)


def test_vllms_call_for_a_prompt_without_a_cache() -> None:
    """Encoders, and prompts whose keys are at hand: no pages, packed keys."""
    q, k, v = (torch.randn(12, heads, 64).half() for heads in (H, HK, HK))
    bounds, output = torch.tensor([0, 5, 5, 12], dtype=torch.int32), torch.empty(12, H, 64).half()
    for causal, window in ((True, [-1, -1]), (False, [2, 2]), (True, [3, 0])):
        flash_attn_varlen_func(
            q=q,
            k=k,
            v=v,
            out=output,
            cu_seqlens_q=bounds,
            cu_seqlens_k=bounds,
            max_seqlen_q=7,
            max_seqlen_k=7,
            softmax_scale=0.125,
            causal=causal,
            alibi_slopes=None,
            window_size=window,
            softcap=0,
            fa_version=2,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            num_splits=1,
        )
        for first, end in ((0, 5), (5, 12)):
            distance = torch.arange(end - first)[:, None] - torch.arange(end - first)
            seen = (distance >= (0 if causal else -99)) & ((distance.abs() <= window[0]) if window[0] >= 0 else True)
            given = [tensor[first:end].transpose(0, 1).double() for tensor in (q, k, v)]
            exact = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=seen, enable_gqa=True)
            assert torch.allclose(output[first:end].double(), exact.transpose(0, 1), atol=5e-3)


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_sglangs_call_for_a_batch_of_prompts_and_steps(integers: Any) -> None:
    """`FlashAttentionBackend.forward_extend`: packed queries over pages, whose table is called page_table."""
    cache = Cache(64, 64)
    q, bounds = queries(cache)
    result = flash_attn_with_kvcache(
        q=q.contiguous().view(-1, H, 64),
        k_cache=cache.k,
        v_cache=cache.v,
        page_table=cache.table.to(integers),
        cache_seqlens=torch.tensor(LENGTHS, dtype=integers),
        cu_seqlens_q=bounds.to(integers),
        cu_seqlens_k_new=torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], dtype=torch.int32),
        max_seqlen_q=max(QUERIES),
        softmax_scale=0.125,
        causal=True,
        window_size=(20, 0),
        softcap=30.0,
        k_descale=None,
        v_descale=None,
        return_softmax_lse=False,
        num_splits=0,
        ver=3,
    )
    assert_right(result, cache, q, bounds, left=20, softcap=30.0)


def test_sglangs_call_for_a_step_of_a_model_with_sinks() -> None:
    """`FlashAttentionBackend.forward_decode`, one query a request."""
    cache = Cache(16, 64)
    live, sinks = 3, torch.randn(H)
    q = torch.randn(live, H, 64).half()
    o, lse, *_ = flash_attn_with_kvcache(
        q=q,
        k_cache=cache.k,
        v_cache=cache.v,
        page_table=cache.table[:live],
        cache_seqlens=torch.tensor(LENGTHS[:live], dtype=torch.int32),
        cu_seqlens_q=torch.arange(live + 1, dtype=torch.int32),
        cu_seqlens_k_new=None,
        max_seqlen_q=1,
        softmax_scale=0.125,
        causal=True,
        window_size=(-1, -1),
        softcap=0.0,
        k_descale=None,
        v_descale=None,
        return_softmax_lse=True,
        num_splits=0,
        sinks=sinks,
        ver=3,
    )
    assert_right(o, cache, q, torch.arange(live + 1), lse, sinks=sinks)


def test_flash_attention_3s_calls_are_taken_by_name() -> None:
    q, k, v = (torch.randn(2, 9, heads, 64).half() for heads in (H, HK, HK))
    hints = {"num_splits": 1, "pack_gqa": True, "sm_margin": 4, "deterministic": True, "attention_chunk": 0}
    nothing = {"qv": None, "q_descale": None, "k_descale": None, "v_descale": None}
    result = flash_attn_func(q, k, v, causal=True, window_size=(-1, -1), **hints, **nothing)
    assert torch.equal(result, flash_attn_func(q, k, v, causal=True))


@pytest.mark.parametrize("page", [48, 64])
def test_flashmlas_documented_loop(page: int) -> None:
    """As its README has it, over pages of any size and tables of either integers."""
    torch.manual_seed(0)
    b, s_q, h_q, h_kv, d, dv = 2, 2, 4, 1, 64, 48
    cache_seqlens, pages = torch.tensor([60, 33], dtype=torch.int32), 2
    kvcache_i, q_i = torch.randn(b * pages, page, h_kv, d).bfloat16(), torch.randn(b, s_q, h_q, d).bfloat16()
    block_table = torch.randperm(b * pages).view(b, pages)
    tile_scheduler_metadata, num_splits = get_mla_metadata(cache_seqlens, s_q * h_q // h_kv, h_kv)
    o_i, lse_i = flash_mla_with_kvcache(
        q_i,
        kvcache_i,
        block_table,
        cache_seqlens,
        dv,
        tile_scheduler_metadata,
        num_splits,
        causal=True,
    )
    assert num_splits.shape == (b + 1,) and tile_scheduler_metadata.dtype == torch.int32
    assert get_mla_metadata() == (None, None)
    for n, length in enumerate(cache_seqlens.tolist()):
        rows = kvcache_i[block_table[n]].flatten(0, 2)[:length].double()
        scores = torch.einsum("thd,sd->hts", q_i[n].double(), rows) * d**-0.5
        hidden = torch.arange(length) > torch.arange(s_q)[:, None] + length - s_q
        scores = scores.masked_fill(hidden, -torch.inf)
        assert torch.allclose(o_i[n].double(), torch.einsum("hts,sd->thd", scores.softmax(-1), rows[:, :dv]), atol=2e-2)
        assert torch.allclose(lse_i[n].double(), scores.logsumexp(-1), atol=1e-3)


REFUSED: list[tuple[Any, dict[str, Any]]] = [
    (flash_attn_func, {"qv": torch.ones(1)}),
    (flash_attn_func, {"attention_chunk": 64}),
    (flash_attn_varlen_func, {"q_v": torch.ones(1)}),
    (flash_attn_varlen_func, {"q_descale": torch.ones(1)}),
    (flash_attn_varlen_func, {"seqused_q": torch.ones(1)}),
    (flash_attn_varlen_func, {"cp_world_size": 2}),
    (flash_attn_with_kvcache, {"qv": torch.ones(1)}),
    (flash_attn_with_kvcache, {"rotary_seqlens": torch.ones(1)}),
]


@pytest.mark.parametrize(("function", "wrong"), REFUSED, ids=[next(iter(wrong)) for _, wrong in REFUSED])
def test_what_changes_a_result_and_is_not_served_is_refused_by_name(function: Any, wrong: dict[str, Any]) -> None:
    """As a ValueError, which engines catch, and as this program's own."""
    given = [torch.randn(1, 4, 2, 64).half()] * 3
    packed = [torch.randn(4, 2, 64).half()] * 3 + [torch.tensor([0, 4], dtype=torch.int32)] * 2 + [4, 4]
    args = packed if function is flash_attn_varlen_func else given
    for error in (ValueError, UsageError):
        with pytest.raises(error, match=rf"{function.__name__}: {next(iter(wrong))}=.* is not supported"):
            function(*args, **wrong)


@pytest.mark.parametrize(
    ("page", "lengths"), [(None, [65, 3]), (16, [65, 3]), (48, [3, 97])], ids=["dense", "pages", "odd_pages"]
)
def test_lengths_beyond_the_cache_are_an_error_that_names_them(page: int | None, lengths: list[int]) -> None:
    q = torch.randn(2, 1, H, 64).half()
    shape = (2, 64, HK, 64) if page is None else (8, page, HK, 64)
    table = None if page is None else torch.arange(8, dtype=torch.int32).view(2, 4)[:, : 64 // page + (page == 48)]
    k, v = torch.randn(shape).half(), torch.randn(shape).half()
    with pytest.raises(InputError, match=rf"cache_seqlens go beyond the cache, .* has {max(lengths)}"):
        flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor(lengths, dtype=torch.int32), block_table=table)
    with pytest.raises(InputError, match="cache_seqlens 97 goes beyond the cache"):
        flash_attn_with_kvcache(q, k, v, cache_seqlens=97, block_table=table)


@pytest.mark.parametrize("paged", [False, True])
def test_an_append_beyond_the_room_is_an_error_that_names_it(paged: bool) -> None:
    q = torch.randn(2, 3, H, 64).half()
    k, v = (torch.zeros(*((8, 16) if paged else (2, 64)), HK, 64).half() for _ in range(2))
    table = torch.arange(8).view(2, 4) if paged else None
    new = [torch.randn(2, 3, HK, 64).half() for _ in range(2)]
    with pytest.raises(InputError, match=r"cache_seqlens and 3 new positions go beyond the cache, .* 64 .* has 62"):
        flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=torch.tensor([5, 62]), block_table=table, causal=True)
    assert not k.any() and not v.any()
    flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=torch.tensor([5, 61]), block_table=table, causal=True)
    assert k.any() and v.any()


def test_a_compiled_step_keeps_its_graph_and_its_checks() -> None:
    cache = Cache(48, 64)
    lengths, q = torch.tensor(LENGTHS, dtype=torch.int64), torch.randn(4, 1, H, 64).half()
    compiled = torch.compile(flash_attn_with_kvcache, backend="aot_eager", fullgraph=True)
    given = {"cache_seqlens": lengths, "page_table": cache.table, "causal": True}
    assert torch.equal(compiled(q, cache.k, cache.v, **given), flash_attn_with_kvcache(q, cache.k, cache.v, **given))
    with pytest.raises(RuntimeError, match="cache_seqlens go beyond the cache"):
        compiled(q, cache.k, cache.v, **{**given, "cache_seqlens": lengths + 90})


def test_pages_whose_parts_lie_nowhere_alike_are_refused() -> None:
    rows = torch.randn(2, 50, HK, 64).half()
    k, v = rows[:, :48], torch.randn(2, 48, HK, 64).half()
    table = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(InputError, match="pages of 48 rows are cut into 16 rows"):
        flash_attn_with_kvcache(torch.randn(1, 1, H, 64).half(), k, v, block_table=table, cache_seqlens=9)


def test_an_out_of_another_shape_or_with_gradients_is_refused() -> None:
    q, k, v = (torch.randn(1, 4, 2, 64).half() for _ in range(3))
    with pytest.raises(InputError, match=r"out is \[1, 3, 2, 64\]"):
        flash_attn_func(q, k, v, out=q[:, :3])
    with pytest.raises(InputError, match="out has no gradient"):
        flash_attn_func(q.requires_grad_(), k, v, out=torch.empty_like(k))


@pytest.mark.parametrize("D", [4, 12, 100])
@pytest.mark.parametrize("window", [(-1, -1), (3, 0)])
def test_heads_of_any_width_are_served_with_their_gradients(D: int, window: tuple[int, int]) -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 9, heads, D).half().requires_grad_() for heads in (H, HK, HK)]
    o, lse = flash_attn_func(*given, causal=True, window_size=window, return_softmax_lse=True)
    o.float().square().sum().backward()
    exact = [tensor.detach().double().transpose(1, 2).requires_grad_() for tensor in given]
    distance = torch.arange(9)[:, None] - torch.arange(9)
    seen = (distance >= 0) & ((distance <= window[0]) if window[0] >= 0 else True)
    right = torch.nn.functional.scaled_dot_product_attention(*exact, attn_mask=seen, enable_gqa=True)
    right.square().sum().backward()
    assert o.shape == given[0].shape and lse.shape == (1, H, 9)
    assert torch.allclose(o.double(), right.transpose(1, 2), atol=5e-3)
    for ours, theirs in zip(given, exact, strict=True):
        assert torch.allclose(ours.grad.double().transpose(1, 2), theirs.grad, atol=2e-2)


@pytest.mark.parametrize("D", [4, 100])
def test_caches_of_heads_of_any_width_are_served_and_appended_to(D: int) -> None:
    q, new = torch.randn(2, 1, H, D).half(), [torch.randn(2, 1, HK, D).half() for _ in range(2)]
    k, v = (torch.randn(2, 32, HK, D).half() for _ in range(2))
    o = flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=torch.tensor([9, 20], dtype=torch.int32))
    assert torch.equal(k[1, 20], new[0][1, 0])
    for b, n in enumerate((10, 21)):
        given = [tensor[b : b + 1, :n].double().transpose(1, 2) for tensor in (q, k, v)]
        exact = torch.nn.functional.scaled_dot_product_attention(*given, enable_gqa=True)
        assert torch.allclose(o[b].double(), exact.transpose(1, 2)[0], atol=5e-3)


@pytest.mark.parametrize("packed", [False, True])
def test_a_learned_logit_has_the_gradient_of_the_definition(packed: bool) -> None:
    """In the model's own dtype, beside a window, as gpt-oss is trained."""
    torch.manual_seed(0)
    given = [torch.randn(9, heads, 64).half().requires_grad_() for heads in (H, HK, HK)]
    sinks = torch.randn(H).bfloat16().requires_grad_()
    options: dict[str, Any] = {"causal": True, "window_size": (4, 0), "s_aux": sinks}
    if packed:
        bounds = torch.tensor([0, 9], dtype=torch.int32)
        o = flash_attn_varlen_func(*given, bounds, bounds, 9, 9, **options)
    else:
        o = flash_attn_func(*(tensor[None] for tensor in given), **options)[0]
    o.float().square().sum().backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in (*given, sinks)]
    q, k, v = (tensor.repeat_interleave(H // tensor.shape[1], 1) for tensor in exact[:3])
    scores = torch.einsum("thd,shd->hts", q, k) / 8
    distance = torch.arange(9)[:, None] - torch.arange(9)
    scores = scores.masked_fill((distance < 0) | (distance > 4), -torch.inf)
    every = torch.cat([scores, exact[3][:, None, None].expand(H, 9, 1)], dim=2).softmax(-1)
    right = torch.einsum("hts,shd->thd", every[..., :-1], v)
    right.square().sum().backward()
    assert torch.allclose(o.double(), right, atol=5e-3)
    for ours, theirs in zip((*given, sinks), exact, strict=True):
        assert torch.allclose(ours.grad.double(), theirs.grad, rtol=5e-3, atol=3e-2)
