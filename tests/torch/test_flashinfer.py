"""Tests of FlashInfer's calls, and of non-causal queries over pages, compared with attention in float64."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner import flashinfer  # noqa: E402
from tuner.errors import InputError  # noqa: E402
from tuner.torch import flash_attn_varlen_func  # noqa: E402
from tuner.torch.flashinfer import _pages  # noqa: E402

H, HK, D, PAGE = 4, 2, 16, 16
QUERIES, KEYS = (5, 1, 70), (37, 16, 71)
BOUNDS = torch.tensor([0, 5, 6, 76], dtype=torch.int32)


def attention(q: Any, k: Any, v: Any, *, causal: bool) -> tuple[Any, Any]:
    """o [T, H, D] and lse [T, H] to base 2."""
    k, v = (x.double().repeat_interleave(H // HK, 1) for x in (k, v))
    scores = torch.einsum("thd,shd->hts", q.double(), k) * D**-0.5
    if causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + len(k) - len(q))
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hts,shd->thd", scores.softmax(-1), v), scores.logsumexp(-1).T / torch.tensor(2.0).log()


def drawn() -> tuple[Any, list[Any], list[Any]]:
    """q [T, H, D], and keys and values of each sequence."""
    torch.manual_seed(0)
    keys, values = ([torch.randn(count, HK, D) for count in KEYS] for _ in range(2))
    return torch.randn(sum(QUERIES), H, D), keys, values


def expected(q: Any, keys: list[Any], values: list[Any], *, causal: bool) -> tuple[Any, Any]:
    parts = zip(q.split(QUERIES), keys, values, strict=True)
    outputs, sums = zip(*(attention(*part, causal=causal) for part in parts), strict=True)
    return torch.cat(outputs), torch.cat(sums)


def in_pages(keys: list[Any], values: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    """A cache [pages, 2, PAGE, HK, D] whose pages are in a drawn order, and (indptr, indices, last_page_len)."""
    counts = [-(-len(rows) // PAGE) for rows in keys]
    indices = torch.randperm(sum(counts)).int()
    cache, page = torch.full((sum(counts), 2, PAGE, HK, D), torch.nan), 0
    for rows in zip(keys, values, strict=True):
        for parts in zip(*(x.split(PAGE) for x in rows), strict=True):
            for side, part in enumerate(parts):
                cache[indices[page], side, : len(part)] = part
            page += 1
    indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    return cache, (indptr, indices, torch.tensor([(len(rows) - 1) % PAGE + 1 for rows in keys], dtype=torch.int32))


def assert_close(ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> None:
    for result, right in zip(ours, theirs, strict=True):
        assert (result - right).abs().max() <= 1e-5


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("causal", [True, False])
def test_prefill_over_pages(causal: bool, layout: str) -> None:
    q, keys, values = drawn()
    cache, pages = in_pages(keys, values)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(torch.empty(0), layout)
    wrapper.plan(BOUNDS, *pages, H, HK, D, PAGE, causal=causal)
    cache = cache.transpose(2, 3).contiguous() if layout == "HND" else cache
    assert_close(wrapper.run(q, cache, return_lse=True), expected(q, keys, values, causal=causal))
    assert torch.equal(wrapper.run(q, cache.unbind(1)), wrapper.run(q, cache))


def test_decoding_over_pages() -> None:
    q, keys, values = drawn()
    cache, pages = in_pages(keys, values)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(0), "NHD")
    wrapper.plan(*pages, H, HK, D, PAGE)
    o = wrapper.run(q[:3], cache, k_scale=0.5, v_scale=2.0)
    parts = zip(q[:3].split(1), (0.5 * k for k in keys), (2 * v for v in values), strict=True)
    assert_close((o, o), (torch.cat([attention(*part, causal=False)[0] for part in parts]),) * 2)


def test_prefill_of_packed_keys() -> None:
    q, keys, values = drawn()
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(torch.empty(0))
    wrapper.plan(BOUNDS, torch.tensor([0, *torch.tensor(KEYS).cumsum(0).tolist()]), H, HK, D, causal=True)
    ours = wrapper.run(q, torch.cat(keys), torch.cat(values), return_lse=True)
    assert_close(ours, expected(q, keys, values, causal=True))


def test_states_of_two_sets_of_keys_merge_to_that_of_both() -> None:
    q, keys, values = drawn()
    q, k, v = q[:5], keys[0], values[0]
    states = [
        flashinfer.single_prefill_with_kv_cache(q, k[part], v[part], return_lse=True)
        for part in (slice(0, 20), slice(20, None))
    ]
    right = attention(q, k, v, causal=False)
    assert_close(flashinfer.merge_state(*states[0], *states[1]), right)
    nothing = torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf)
    o, lse = (x.clone() for x in states[0])
    flashinfer.merge_state_in_place(o, lse, *nothing)
    flashinfer.merge_state_in_place(o, lse, *states[1], mask=torch.tensor([True] * 4 + [False]))
    assert_close((o[:4], lse[:4]), (right[0][:4], right[1][:4]))
    assert torch.equal(o[4], states[0][0][4])
    hnd = flashinfer.single_decode_with_kv_cache(q[4], k.transpose(0, 1), v.transpose(0, 1), "HND", return_lse=True)
    assert_close(hnd, (right[0][4], right[1][4]))


def test_descales_and_sinks_of_queries_that_attend_all_keys() -> None:
    """By flash-attn's signature, as cascades of vLLM call it."""
    q, keys, values = drawn()
    cache, pages = in_pages(keys, values)
    table, lengths = _pages(*pages, PAGE)
    sinks = torch.randn(H)
    o = flash_attn_varlen_func(q, *cache.unbind(1), BOUNDS, max_seqlen_q=70, block_table=table, seqused_k=lengths,
                               s_aux=sinks)  # fmt: skip
    right, sums = expected(q, keys, values, causal=False)
    share = torch.sigmoid(sums * torch.tensor(2.0).log() - sinks)  # of the softmax, beside the sink
    assert (o - right * share[..., None]).abs().max() <= 1e-5


def test_what_is_not_served_is_named() -> None:
    q, keys, values = drawn()
    with pytest.raises(InputError, match="use_cuda_graph=True is not supported"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(0), "NHD", use_cuda_graph=True)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(torch.empty(0))
    with pytest.raises(InputError, match="there is no plan"):
        wrapper.run(q, keys[0], values[0])
    with pytest.raises(InputError, match="plan: custom_mask=a tensor is not supported"):
        wrapper.plan(BOUNDS, BOUNDS, H, HK, D, custom_mask=torch.ones(3))
    with pytest.raises(InputError, match="pos_encoding_mode='ROPE_LLAMA' is not supported"):
        flashinfer.single_prefill_with_kv_cache(q, keys[0], values[0], pos_encoding_mode="ROPE_LLAMA")
    with pytest.raises(InputError, match="kv_layout 'DNH': give 'NHD' or 'HND'"):
        flashinfer.single_prefill_with_kv_cache(q, keys[0], values[0], kv_layout="DNH")
    wrapper.plan(BOUNDS, BOUNDS, 2 * H, HK, D)
    with pytest.raises(InputError, match="but the plan is for 8 and 2 heads"):
        wrapper.run(q, keys[0], values[0])
