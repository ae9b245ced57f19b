"""Tests of attention over a KV cache with the signature of flash-attn."""

from inspect import signature
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import InputError, UsageError  # noqa: E402
from tuner.torch import flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: E402

B, S, PAGE, H, HK, D = 2, 48, 16, 4, 2, 16
LENGTHS = (48, 17)


def drawn(queries: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    shapes = ((B, queries, H, D), (B, S, HK, D), (B, S, HK, D))
    return tuple(torch.randn(shape).half() for shape in shapes)  # type: ignore[return-value]


def in_pages(cache: Any) -> tuple[Any, Any]:
    """The cache [pages, page_size, HK, D] in another order, and the table of it."""
    order = torch.randperm(B * S // PAGE, generator=torch.Generator().manual_seed(1))
    table = torch.empty(len(order), dtype=torch.int32)
    table[order] = torch.arange(len(order), dtype=torch.int32)
    return cache.reshape(-1, PAGE, HK, D)[order], table.view(B, -1)


def expected(q: Any, k: Any, v: Any, lengths: tuple[int, ...], causal: bool, left: int) -> Any:
    """torch's attention of each sequence."""
    outputs = []
    for b, n in enumerate(lengths):
        position = torch.arange(q.shape[1])[:, None] + n - q.shape[1]
        key = torch.arange(n)[None]
        seen = ((key <= position) | (not causal)) & ((left < 0) | (position - key <= left))
        given = [tensor[b].transpose(0, 1).double() for tensor in (q, k[:, :n], v[:, :n])]
        result = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=seen, enable_gqa=True)
        outputs.append(result.transpose(0, 1))
    return torch.stack(outputs)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(("queries", "causal", "left"), [(1, False, -1), (3, True, -1), (3, False, -1), (2, True, 8)])
def test_it_is_attention_to_what_each_sequence_has_in_the_cache(
    paged: bool, queries: int, causal: bool, left: int
) -> None:
    q, k, v = drawn(queries)
    caches, table = ((in_pages(k)[0], in_pages(v)[0]), in_pages(k)[1]) if paged else ((k, v), None)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    options = {"cache_seqlens": lengths, "block_table": table, "causal": causal, "window_size": (left, -1)}
    o, lse = flash_attn_with_kvcache(q, *caches, **options, return_softmax_lse=True)
    assert torch.allclose(o.double(), expected(q, k, v, LENGTHS, causal, left), atol=4e-3)
    assert lse.shape == (B, H, queries)


@pytest.mark.parametrize("left", [-1, 8])
def test_packed_queries_attend_what_their_sequences_have_in_pages(left: int) -> None:
    """A prompt beside a step of decoding."""
    q, k, v = drawn(5)
    packed, (pages, table), (of_v, _) = torch.cat([q[0], q[1, :1]]), in_pages(k), in_pages(v)
    bounds = [torch.tensor(offsets, dtype=torch.int32) for offsets in ((0, 5, 6), (0, LENGTHS[0], sum(LENGTHS)))]
    options = {"causal": True, "window_size": (left, -1), "block_table": table, "return_attn_probs": True}
    o, lse, _ = flash_attn_varlen_func(packed, pages, of_v, *bounds, 5, max(LENGTHS), **options)
    of_each = [expected(q[b : b + 1, :n], k[b:], v[b:], LENGTHS[b : b + 1], True, left) for b, n in ((0, 5), (1, 1))]
    assert torch.allclose(o.double(), torch.cat([tensor[0] for tensor in of_each]), atol=4e-3)
    assert lse.shape == (H, 6)
    with pytest.raises(UsageError, match="a window_size without causal is not supported with block_table"):
        flash_attn_varlen_func(packed, pages, of_v, *bounds, 5, max(LENGTHS), block_table=table, window_size=(3, -1))


def test_the_sums_of_queries_that_see_all_keys_are_theirs() -> None:
    q, k, v = drawn(3)
    _, lse = flash_attn_with_kvcache(q, k, v, return_softmax_lse=True)
    keys = k.double().repeat_interleave(H // HK, 2)
    assert torch.allclose(
        lse.double(), (torch.einsum("bthd,bshd->bhts", q.double(), keys) / 4).logsumexp(-1), atol=1e-3
    )


def test_a_softcap_bends_the_scores_of_a_cache_in_pages() -> None:
    q, k, v = drawn(1)
    keys, values = (array.double().repeat_interleave(H // HK, 2) for array in (k, v))
    scores = 2 * (torch.einsum("bthd,bshd->bhts", q.double(), keys) / 4 / 2).tanh()
    (pages, table), (of_v, _) = in_pages(k), in_pages(v)
    o = flash_attn_with_kvcache(q, pages, of_v, block_table=table, softcap=2.0)
    assert torch.allclose(o.double(), torch.einsum("bhts,bshd->bthd", scores.softmax(-1), values), atol=4e-3)


def test_one_number_is_the_length_of_every_sequence() -> None:
    q, k, v = drawn(1)
    o = flash_attn_with_kvcache(q, k, v, cache_seqlens=20)
    assert torch.allclose(o.double(), expected(q, k, v, (20, 20), True, -1), atol=4e-3)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("new", [1, 3])
def test_new_keys_and_values_go_behind_what_the_caches_hold_and_are_attended(paged: bool, new: int) -> None:
    q, k, v = drawn(new)
    held = (S - new, PAGE - 1)  # the second sequence's positions may end on the next page
    added = [torch.stack([array[b, n : n + new] for b, n in enumerate(held)]) for array in (k, v)]
    emptied = [array.clone() for array in (k, v)]
    for b, n in enumerate(held):
        for tensor in emptied:
            tensor[b, n:] = 0
    caches, table = ([in_pages(tensor)[0] for tensor in emptied], in_pages(k)[1]) if paged else (emptied, None)
    lengths = torch.tensor(held, dtype=torch.int32)
    options = {"cache_seqlens": lengths, "block_table": table, "causal": True}
    o = flash_attn_with_kvcache(q, *caches, *added, **options)
    assert torch.allclose(o.double(), expected(q, k, v, tuple(n + new for n in held), True, -1), atol=4e-3)
    assert lengths.tolist() == list(held)
    again = flash_attn_with_kvcache(q, *caches, **{**options, "cache_seqlens": lengths + new})
    assert torch.equal(o, again)


def test_new_keys_come_with_values_and_lengths() -> None:
    q, k, v = drawn(1)
    with pytest.raises(InputError, match="v is missing"):
        flash_attn_with_kvcache(q, k, v, k[:, :1], cache_seqlens=3)
    with pytest.raises(InputError, match="cache_seqlens is missing"):
        flash_attn_with_kvcache(q, k, v, k[:, :1], v[:, :1])
    with pytest.raises(InputError, match=r"k \[2, 1, 2, 16\] and v \[2, 2, 2, 16\] are not both"):
        flash_attn_with_kvcache(q, k, v, k[:, :1], v[:, :2], cache_seqlens=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rotary_cos", 1), ("cache_batch_idx", 1), ("cache_leftpad", 1), ("alibi_slopes", 1)],
)
def test_what_is_not_served_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name}=1 is not supported"):
        flash_attn_with_kvcache(*drawn(1), **{name: value})
    with pytest.raises(InputError, match="softcap without block_table"):
        flash_attn_with_kvcache(*drawn(1), softcap=2.0)
    with pytest.raises(InputError, match=r"window_size=\(4, 4\) of several queries"):
        flash_attn_with_kvcache(*drawn(2), window_size=(4, 4))


def test_arguments_come_in_the_order_of_flash_attn() -> None:
    """Behind them, by name, those of FlashAttention-3, vLLM and SGLang."""
    theirs = (
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
        "softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse "
        "q_descale k_descale v_descale page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q s_aux sinks out others"
    )
    assert " ".join(signature(flash_attn_with_kvcache).parameters) == theirs


def test_lengths_and_queries_may_be_parts_of_others() -> None:
    q, k, v = drawn(1)
    lengths = torch.tensor((7, *LENGTHS), dtype=torch.int32)[1:]
    beside = torch.stack([q, q], dim=-1)[..., 0]  # whose rows are not contiguous
    result = flash_attn_with_kvcache(beside, k, v, cache_seqlens=lengths)
    assert torch.equal(result, flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths.clone()))


def in_eight_bits(*caches: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Caches [B, S, HK, D] as e4m3, their scales [B, HK], and what they then hold."""
    scales = [(cach.abs().amax((1, 3)) / 448).float() for cach in caches]
    held = [(cach / by[:, None, :, None]).to(torch.float8_e4m3fn) for cach, by in zip(caches, scales, strict=True)]
    return held, scales, [tensor.double() * by[:, None, :, None] for tensor, by in zip(held, scales, strict=True)]


def in_byte_pages(cache: Any) -> Any:
    return in_pages(cache.view(torch.uint8))[0].view(torch.float8_e4m3fn)


@pytest.mark.parametrize("queries", [1, 3])
def test_a_cache_of_eight_bits_is_multiplied_with_its_scales(queries: int) -> None:
    q, k, v = drawn(queries)
    held, (k_descale, v_descale), exact = in_eight_bits(k, v)
    lengths, table = torch.tensor(LENGTHS, dtype=torch.int32), in_pages(k)[1]
    options = {"cache_seqlens": lengths, "block_table": table, "k_descale": k_descale, "v_descale": v_descale}
    o = flash_attn_with_kvcache(q, *map(in_byte_pages, held), causal=True, **options)
    assert torch.allclose(o.double(), expected(q, *exact, LENGTHS, True, -1), atol=4e-3)
    ones = {**options, "k_descale": None, "v_descale": torch.full((1, 1), 0.5).expand(B, HK)}
    o = flash_attn_with_kvcache(q, *map(in_byte_pages, held), causal=True, **ones)
    plain = held[0].double(), held[1].double() / 2
    assert torch.allclose(o.double(), expected(q, *plain, LENGTHS, True, -1), rtol=4e-3, atol=0.2)


@pytest.mark.parametrize("packed", [False, True])
def test_queries_of_eight_bits_are_multiplied_with_their_scale(packed: bool) -> None:
    q, k, v = drawn(3)
    held, (k_descale, v_descale), exact = in_eight_bits(k, v)
    eight, scale = q.mul(4).to(torch.float8_e4m3fn), torch.full((B, HK), 0.25)
    scale[0, 0] = 0.5
    read = eight.double().unflatten(2, (HK, -1)) * scale[:, None, :, None, None]
    options = {"block_table": in_pages(k)[1], "k_descale": k_descale, "v_descale": v_descale, "q_descale": scale}
    pages = [in_byte_pages(tensor) for tensor in held]
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    if packed:
        bounds = torch.tensor([0, 3, 6], dtype=torch.int32)
        rows = eight.flatten(0, 1)
        o = flash_attn_varlen_func(rows, *pages, bounds, None, 3, causal=True, seqused_k=lengths, **options)
        o = o.unflatten(0, (B, 3))
    else:
        o = flash_attn_with_kvcache(eight, *pages, cache_seqlens=lengths, causal=True, **options)
    assert o.dtype == torch.bfloat16
    assert torch.allclose(o.double(), expected(read.flatten(2, 3), *exact, LENGTHS, True, -1), atol=2e-2)


def test_queries_of_eight_bits_go_with_caches_of_such() -> None:
    q, k, v = drawn(1)
    with pytest.raises(InputError, match=r"q of 8 bits, or q_descale, with caches of torch\.float16"):
        flash_attn_with_kvcache(
            q.to(torch.float8_e4m3fn), *(in_pages(x)[0] for x in (k, v)), block_table=in_pages(k)[1]
        )


def test_packed_queries_attend_a_cache_of_eight_bits() -> None:
    q, k, v = drawn(5)
    held, (k_descale, v_descale), exact = in_eight_bits(k, v)
    bounds = [torch.tensor(offsets, dtype=torch.int32) for offsets in ((0, 5, 6), (0, LENGTHS[0], sum(LENGTHS)))]
    options = {"causal": True, "block_table": in_pages(k)[1], "k_descale": k_descale, "v_descale": v_descale}
    packed = torch.cat([q[0], q[1, :1]])
    o = flash_attn_varlen_func(packed, *map(in_byte_pages, held), *bounds, 5, max(LENGTHS), **options)
    of_each = [
        expected(q[b : b + 1, :n], *(tensor[b:] for tensor in exact), LENGTHS[b : b + 1], True, -1)
        for b, n in ((0, 5), (1, 1))
    ]
    assert torch.allclose(o.double(), torch.cat([tensor[0] for tensor in of_each]), atol=4e-3)


def test_new_keys_and_values_of_eight_bits_go_into_a_cache_of_such() -> None:
    q, k, v = drawn(1)
    held, scales, exact = in_eight_bits(k, v)
    pages, table = [in_byte_pages(tensor).clone() for tensor in held], in_pages(k)[1]
    before = torch.tensor([n - 1 for n in LENGTHS], dtype=torch.int32)
    new = [torch.stack([tensor[b, n - 1 : n] for b, n in enumerate(LENGTHS)]) for tensor in held]
    for page in pages:  # what lies there is overwritten
        page.view(torch.uint8)[table[0, 47 // PAGE], 47 % PAGE] = 0
        page.view(torch.uint8)[table[1, 16 // PAGE], 16 % PAGE] = 0
    options = {"cache_seqlens": before, "block_table": table, "k_descale": scales[0], "v_descale": scales[1]}
    o = flash_attn_with_kvcache(q, *pages, *new, **options)
    assert torch.allclose(o.double(), expected(q, *exact, LENGTHS, True, -1), atol=4e-3)
    with pytest.raises(InputError, match=r"k or v is torch.float16: give both as the caches are, torch.float8_e4m3fn"):
        flash_attn_with_kvcache(q, *pages, k[:, :1], v[:, :1], **options)


def test_caches_of_eight_bits_lie_in_pages() -> None:
    q, k, v = drawn(1)
    held, scales, _ = in_eight_bits(k, v)
    with pytest.raises(InputError, match=r"a cache of torch\.float8_e4m3fn without block_table is not supported"):
        flash_attn_with_kvcache(q, *held)
    with pytest.raises(InputError, match="k_descale or v_descale without block_table is not supported"):
        flash_attn_with_kvcache(q, k, v, k_descale=scales[0])


def test_in_autocast_queries_take_the_dtype_of_a_cache_of_16_bits_and_leave_one_of_8_alone() -> None:
    q, k, v = (tensor.bfloat16() for tensor in drawn(1))
    held, scales, _ = in_eight_bits(k, v)
    table, options = in_pages(k)[1], {"k_descale": scales[0], "v_descale": scales[1]}
    whole, eight = [in_pages(array)[0] for array in (k, v)], [in_byte_pages(tensor) for tensor in held]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = flash_attn_with_kvcache(q.float(), *whole, block_table=table)
        stored = flash_attn_with_kvcache(q, *eight, block_table=table, **options)
    assert torch.equal(mixed, flash_attn_with_kvcache(q, *whole, block_table=table))
    assert torch.equal(stored, flash_attn_with_kvcache(q, *eight, block_table=table, **options))
