"""Tests of multi-head latent attention for decoding with FlashMLA's signature."""

from inspect import signature
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import InputError  # noqa: E402
from tuner.torch import flash_mla_with_kvcache  # noqa: E402

B, PAGE, PAGES, H, D, DV = 2, 16, 3, 4, 64, 48
LENGTHS = torch.tensor([48, 17], dtype=torch.int32)


def drawn(queries: int) -> tuple[Any, Any, Any]:
    """q, the cache, and a table of its pages in another order."""
    torch.manual_seed(0)
    q, cache = torch.randn(B, queries, H, D), torch.randn(B * PAGES, PAGE, 1, D)
    return q.bfloat16(), cache.bfloat16(), torch.randperm(B * PAGES).view(B, PAGES).int()


def expected(q: Any, cache: Any, table: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    """out and lse of each sequence, by torch in float64."""
    results = []
    for b, n in enumerate(LENGTHS.tolist()):
        rows = cache[table[b].long()].flatten(0, 2)[:n].double()
        scores = scale * torch.einsum("thd,sd->hts", q[b].double(), rows)
        position = torch.arange(q.shape[1])[:, None] + n - q.shape[1]
        scores = scores.masked_fill((torch.arange(n) > position) & causal, -torch.inf)
        results.append((torch.einsum("hts,sd->thd", scores.softmax(-1), rows[:, :DV]), scores.logsumexp(-1)))
    out, lse = zip(*results, strict=True)
    return torch.stack(out), torch.stack(lse)


@pytest.mark.parametrize(("queries", "causal"), [(1, False), (3, True), (3, False)])
def test_it_is_attention_to_the_rows_of_each_sequence(queries: int, causal: bool) -> None:
    q, cache, table = drawn(queries)
    out, lse = flash_mla_with_kvcache(q, cache, table, LENGTHS, DV, softmax_scale=0.1, causal=causal)
    exact, of_all = expected(q, cache, table, causal, 0.1)
    assert out.dtype == q.dtype
    assert torch.allclose(out.double(), exact, atol=2e-2)
    assert torch.allclose(lse.double(), of_all, atol=1e-3)


def test_the_scale_is_that_of_a_whole_row_where_none_is_given() -> None:
    q, cache, table = drawn(1)
    out, _ = flash_mla_with_kvcache(q, cache, table, LENGTHS, DV)
    assert torch.allclose(out.double(), expected(q, cache, table, False, D**-0.5)[0], atol=2e-2)


def test_what_it_returns_has_a_shape_without_memory() -> None:
    q, cache, table = (tensor.to("meta") for tensor in drawn(3))
    out, lse = flash_mla_with_kvcache(q, cache, table, LENGTHS.to("meta"), DV, causal=True)
    assert (out.shape, lse.shape) == ((B, 3, H, DV), (B, H, 3))


def test_a_cache_of_several_heads_is_refused() -> None:
    q, cache, table = drawn(1)
    with pytest.raises(InputError, match="all heads share its rows"):
        flash_mla_with_kvcache(q, torch.cat([cache, cache], dim=2), table, LENGTHS, DV)


def test_arguments_come_in_the_order_of_flashmla() -> None:
    theirs = "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits softmax_scale causal"
    assert " ".join(signature(flash_mla_with_kvcache).parameters) == f"{theirs} others"
