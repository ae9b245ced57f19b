"""Tests of xFormers' call, compared with attention in float64 under the mask written down.

xFormers' masks are its own objects where it can be imported, and else objects of the same class names and attributes.
"""

from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import InputError  # noqa: E402
from tuner.xformers import memory_efficient_attention  # noqa: E402

try:
    from xformers.ops.fmha import attn_bias as theirs
except ImportError:
    theirs = None

H, D = 2, 16
QUERIES, KEYS = (5, 1, 9), (12, 16, 9)


def seqinfo(lengths: tuple[int, ...]) -> Any:
    starts = [0, *accumulate(lengths)]
    return SimpleNamespace(seqstart=torch.tensor(starts), seqstart_py=starts, max_seqlen=max(lengths))


def padded_seqinfo(lengths: tuple[int, ...], padding: int) -> Any:
    starts = [padding * n for n in range(len(lengths) + 1)]
    return SimpleNamespace(
        **{"seqstart": torch.tensor(starts), "seqstart_py": starts, "max_seqlen": max(lengths), "padding": padding},
        seqlen=torch.tensor(lengths),
    )


def made(name: str, **fields: Any) -> Any:
    """A mask as xFormers makes it."""
    if theirs is None:
        mask = type(name, (), {})()
        vars(mask).update(fields)
        return mask
    return getattr(theirs, name)(**fields)


def blocks(name: str, queries: tuple[int, ...], keys: tuple[int, ...], **window: int) -> Any:
    if theirs is None:
        return made(name, q_seqinfo=seqinfo(queries), k_seqinfo=seqinfo(keys), **window)
    mask = getattr(theirs, name.replace("LocalAttention", "").replace("FromBottomRight", "")).from_seqlens(
        queries, keys
    )
    if "FromBottomRight" in name:
        mask = mask.make_causal_from_bottomright() if not window else mask.make_local_attention_from_bottomright(5)
    return mask


def padded(name: str, padding: int) -> Any:
    if theirs is None:
        return made(name, q_seqinfo=seqinfo(QUERIES), k_seqinfo=padded_seqinfo(KEYS, padding))
    return getattr(theirs, name).from_seqlens(q_seqlen=QUERIES, kv_padding=padding, kv_seqlen=KEYS)


def rows(batch: int, queries: int, keys: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(batch, length, H, D) for length in (queries, keys, keys))


def exact(q: Any, k: Any, v: Any, visible: Any) -> Any:
    scores = torch.einsum("bthd,bshd->bhts", q.double(), k.double()) * D**-0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, v.double())


def visible(queries: int, keys: int, *, causal: bool, window: int = 1 << 20) -> Any:
    behind = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    return (behind <= (0 if causal else keys)) & (behind > -window if causal else True)


def block_diagonal(queries: tuple[int, ...], keys: tuple[int, ...], starts: list[int], total: int, **kind: Any) -> Any:
    mask = torch.zeros(sum(queries), total, dtype=torch.bool)
    for (first, end), key, count in zip(pairwise([0, *accumulate(queries)]), starts, keys, strict=False):
        mask[first:end, key : key + count] = visible(end - first, count, **kind)
    return mask


DENSE = {
    "LowerTriangularMask": ((9, 9), {"causal": True}, {}),
    "LowerTriangularFromBottomRightMask": ((5, 12), {"causal": True}, {}),
    "LowerTriangularFromBottomRightLocalAttentionMask": (
        (9, 12),
        {"causal": True, "window": 5},
        {"_window_size": 5},
    ),
}


@pytest.mark.parametrize("name", DENSE)
def test_lower_triangular_masks_are_aligned_as_they_say(name: str) -> None:
    (queries, keys), kind, fields = DENSE[name]
    tensors = rows(2, queries, keys)
    o = memory_efficient_attention(*tensors, attn_bias=made(name, **fields))
    assert (o - exact(*tensors, visible(queries, keys, **kind))).abs().max() <= 1e-5


BLOCKS = {
    "BlockDiagonalMask": (KEYS, {"causal": False}, {}),
    "BlockDiagonalCausalMask": (QUERIES, {"causal": True}, {}),
    "BlockDiagonalCausalFromBottomRightMask": (KEYS, {"causal": True}, {}),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": (
        KEYS,
        {"causal": True, "window": 5},
        {"_window_size": 5},
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_diagonal_masks_pack_sequences(name: str) -> None:
    keys, kind, fields = BLOCKS[name]
    tensors = tuple(x.requires_grad_() for x in rows(1, sum(QUERIES), sum(keys)))
    o = memory_efficient_attention(*tensors, attn_bias=blocks(name, QUERIES, keys, **fields))
    expected = exact(*tensors, block_diagonal(QUERIES, keys, [0, *accumulate(keys)], sum(keys), **kind))
    assert (o - expected).abs().max() <= 1e-5
    for ours, other in zip(*(torch.autograd.grad((x**2).sum(), tensors) for x in (o, expected)), strict=True):
        assert (ours - other).abs().max() <= 1e-4


@pytest.mark.parametrize("causal", [False, True])
def test_padded_keys_are_not_attended(causal: bool) -> None:
    name = "BlockDiagonalCausalWithOffsetPaddedKeysMask" if causal else "BlockDiagonalPaddedKeysMask"
    tensors = rows(1, sum(QUERIES), 3 * 16)
    o = memory_efficient_attention(*tensors, attn_bias=padded(name, 16))
    expected = exact(*tensors, block_diagonal(QUERIES, KEYS, [0, 16, 32], 48, causal=causal))
    assert (o - expected).abs().max() <= 1e-5


def test_keys_may_lie_in_pages() -> None:
    q, k, v = rows(1, sum(QUERIES), 3 * 32)
    name = "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask"
    table = torch.tensor([[4, 0], [2, 5], [1, 3]], dtype=torch.int32)
    fields = {"q_seqinfo": seqinfo(QUERIES), "k_seqinfo": padded_seqinfo(KEYS, 32)}
    mask = type(name, (), {})()
    vars(mask).update(fields, block_tables=table, page_size=16)
    o = memory_efficient_attention(q, k, v, attn_bias=mask)
    in_order = tuple(x.view(6, 16, H, D)[table.flatten().long()].reshape(1, 96, H, D) for x in (k, v))
    expected = exact(q, *in_order, block_diagonal(QUERIES, KEYS, [0, 32, 64], 96, causal=True))
    assert (o - expected).abs().max() <= 1e-5


def test_groups_of_heads_and_single_heads_have_their_shapes() -> None:
    q, k, v = rows(2, 5, 7)
    assert (memory_efficient_attention(q, k, v) - exact(q, k, v, visible(5, 7, causal=False))).abs().max() <= 1e-5
    one = memory_efficient_attention(q[:, :, 0], k[:, :, 0], v[:, :, 0])
    assert torch.equal(one, memory_efficient_attention(q, k, v)[:, :, 0])
    groups = torch.randn(2, 5, H, 3, D)
    shared = (x[:, :, :, None].expand(-1, -1, -1, 3, -1) for x in (k, v))
    o = memory_efficient_attention(groups, *shared)
    for head in range(3):
        expected = exact(groups[:, :, :, head], k, v, visible(5, 7, causal=False))
        assert (o[:, :, :, head] - expected).abs().max() <= 1e-5


def test_what_is_not_served_is_named() -> None:
    q, k, v = rows(1, 5, 7)
    with pytest.raises(InputError, match=r"p=0\.5 is not supported"):
        memory_efficient_attention(q, k, v, p=0.5)
    with pytest.raises(InputError, match="attn_bias=a tensor is not supported"):
        memory_efficient_attention(q, k, v, attn_bias=torch.zeros(1, H, 5, 7))
    with pytest.raises(InputError, match="LowerTriangularMask with other numbers of keys than queries"):
        memory_efficient_attention(q, k, v, attn_bias=made("LowerTriangularMask"))
    with pytest.raises(InputError, match="BlockDiagonalGappyKeysMask is not supported"):
        memory_efficient_attention(q, k, v, attn_bias=type("BlockDiagonalGappyKeysMask", (), {})())
