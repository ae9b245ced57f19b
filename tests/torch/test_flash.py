"""Tests of attention with flash-attn's signatures; on the CPU it runs on the emulator."""

from inspect import signature
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import UsageError  # noqa: E402
from tuner.torch import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from tuner.torch.tensor_layout import addressable  # noqa: E402

BOUNDS = (0, 5, 5, 12), (0, 9, 10, 20)  # of queries, of keys


def qkv(*lead: int, queries: int = 12, keys: int = 20) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(*lead, rows, heads, 16).half() for rows, heads in ((queries, 4), (keys, 2), (keys, 2))]


def exact(q: Any, k: Any, v: Any, visible: Any = None, softcap: float = 0.0) -> tuple[Any, Any]:
    """o [B, T, H, D] and lse [B, H, T] in float64."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    k, v = (array.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for array in (k, v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1)


def near(queries: int, keys: int, left: int, right: int) -> Any:
    distance = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    return (distance >= -left) & (distance <= right)


def causal(queries: int, keys: int, left: int = 10**6) -> Any:
    position, key = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    return (key <= position) & (position - key <= left)


def test_arguments_have_the_order_and_defaults_of_flash_attn() -> None:
    options = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic"]
    options.append("return_attn_probs")
    dense, packed = (signature(function).parameters for function in (flash_attn_func, flash_attn_varlen_func))
    forms = ["s_aux", "out", "return_softmax_lse"]
    assert list(dense) == ["q", "k", "v", *options, *forms, "others"]
    scales = ["q_descale", "k_descale", "v_descale"]
    lengths = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
    assert list(packed) == ["q", "k", "v", *lengths, *options, "block_table", "seqused_k", *forms, *scales, "others"]
    defaults = [0.0, None, False, (-1, -1), 0.0, None, False, False]
    assert [dense[name].default for name in options] == defaults == [packed[name].default for name in options]


@pytest.mark.parametrize(
    ("options", "visible", "softcap"),
    [
        ({}, None, 0.0),
        ({"causal": True, "softcap": 2.0}, causal(12, 20), 2.0),
        ({"window_size": (-1, 0)}, causal(12, 20), 0.0),
        ({"window_size": (3, 0)}, causal(12, 20, 3), 0.0),
        ({"window_size": (0, -1), "causal": True}, causal(12, 20, 0), 0.0),
        ({"window_size": (4, 4)}, near(12, 20, 4, 4), 0.0),
        ({"window_size": (4, -1)}, near(12, 20, 4, 20), 0.0),
        ({"window_size": (-7, 2)}, near(12, 20, 20, 2), 0.0),
        ({"window_size": (3, 5), "causal": True, "softcap": 2.0}, causal(12, 20, 3), 2.0),
    ],
    ids=[
        *("plain", "causal_capped", "a_window_that_is_causal", "a_window", "a_window_of_one"),
        *("symmetric", "left_alone", "right_alone", "capped_window"),
    ],
)
def test_results_are_flash_attns(options: dict[str, Any], visible: Any, softcap: float) -> None:
    q, k, v = qkv(2)
    o, lse, pattern = flash_attn_func(q, k, v, return_attn_probs=True, **options)
    expected, sums = exact(q, k, v, visible, softcap)
    assert torch.allclose(o.double(), expected, atol=2e-3)
    assert torch.allclose(lse.double(), sums, atol=1e-4)
    assert pattern is None


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "softcap": 1.5}, {"causal": True, "window_size": (3, 0)}, {"window_size": (2, 4)}],
    ids=["plain", "causal_capped", "window", "symmetric"],
)
def test_packed_sequences_get_what_each_gets_alone(options: dict[str, Any]) -> None:
    q, k, v = qkv()
    bounds = [torch.tensor(bounds_row, dtype=torch.int32) for bounds_row in BOUNDS]
    o, lse, _ = flash_attn_varlen_func(q, k, v, *bounds, 7, 10, return_attn_probs=True, **options)
    assert (o.shape, lse.shape) == (q.shape, (4, 12))
    for (first, end), (key, last) in zip(*map(pairwise, BOUNDS), strict=True):
        if end > first:
            left, right = options.get("window_size", (-1, -1))
            right = 0 if options.get("causal") else right
            mask = near(end - first, last - key, left if left >= 0 else 99, right if right >= 0 else 99)
            alone = (tensor[None] for tensor in (q[first:end], k[key:last], v[key:last]))
            expected, sums = exact(*alone, mask, options.get("softcap", 0.0))
            assert torch.allclose(o[first:end].double(), expected[0], atol=2e-3)
            assert torch.allclose(lse[:, first:end].double(), sums[0], atol=1e-4)


def test_values_may_be_of_another_width_than_keys() -> None:
    q, k, _ = qkv(1)
    v = torch.randn(1, 20, 2, 24).half()
    expected, _ = exact(q, k, v, causal(12, 20))
    assert torch.allclose(flash_attn_func(q, k, v, causal=True).double(), expected, atol=2e-3)


def test_stacked_tensors_are_taken_as_views() -> None:
    qkv = torch.randn(1, 12, 3, 2, 16).half()
    q, k, v = (tensor.contiguous() for tensor in qkv.unbind(2))
    expected = flash_attn_func(q, k, v, 0.0, None, True)
    assert torch.equal(flash_attn_qkvpacked_func(qkv, 0.0, None, True), expected)
    assert torch.equal(flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), expected)
    assert all(addressable(tensor) is tensor for tensor in qkv.unbind(2))


def test_dense_tensors_that_start_anywhere_are_copied() -> None:
    whole, bounds = torch.randn(1 + 12 * 2 * 16).half(), torch.tensor([7, *BOUNDS[0]], dtype=torch.int32)
    q = whole[1:].view(12, 2, 16)
    expected = flash_attn_varlen_func(q.clone(), q.clone(), q.clone(), bounds[1:].clone(), bounds[1:].clone(), 12, 12)
    assert torch.equal(flash_attn_varlen_func(q, q, q, bounds[1:], bounds[1:], 12, 12), expected)
    upstream = torch.randn(1 + 12 * 2 * 16).half()[1:].view(1, 12, 2, 16)
    rows = q[None].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(flash_attn_func(rows, rows, rows), rows, upstream)
    (wanted,) = torch.autograd.grad(flash_attn_func(rows, rows, rows), rows, upstream.clone())
    assert torch.equal(gradient, wanted)


def test_stacked_tensors_of_packed_sequences_are_taken_as_views() -> None:
    qkv, bounds = torch.randn(12, 3, 2, 16).half(), torch.tensor(BOUNDS[0], dtype=torch.int32)
    q, k, v = (tensor.contiguous() for tensor in qkv.unbind(1))
    lengths = (bounds, bounds, 7, 7)
    expected = flash_attn_varlen_func(q, k, v, *lengths, causal=True)
    assert torch.equal(flash_attn_varlen_qkvpacked_func(qkv, bounds, 7, causal=True), expected)
    assert torch.equal(flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], *lengths, causal=True), expected)


def test_tensors_that_kernels_cannot_address_are_copied() -> None:
    q, k, v = qkv(1)
    awkward = [tensor.transpose(1, 3).contiguous().transpose(1, 3) for tensor in (q, k, v)]
    assert torch.equal(flash_attn_func(*awkward), flash_attn_func(q, k, v))


@pytest.mark.parametrize(("window", "softcap"), [((-1, -1), 0.0), ((3, 0), 0.0), ((-1, -1), 1.5), ((3, 0), 1.5)])
def test_gradients_are_those_of_the_definition(window: tuple[int, int], softcap: float) -> None:
    given = [tensor.requires_grad_() for tensor in qkv(1)]
    flash_attn_func(*given, causal=True, window_size=window, softcap=softcap).float().square().sum().backward()
    doubles = [tensor.detach().double().requires_grad_() for tensor in given]
    exact(*doubles, causal(12, 20, window[0] if window[0] >= 0 else 20), softcap)[0].square().sum().backward()
    for ours, theirs in zip(given, doubles, strict=True):
        assert torch.allclose(ours.grad.double(), theirs.grad, atol=1e-2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dropout_p": 0.1},
        {"alibi_slopes": torch.ones(4)},
    ],
    ids=["dropout", "alibi"],
)
def test_what_is_not_served_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"flash_attn_func: {next(iter(wrong))}.*is not supported"):
        flash_attn_func(*qkv(1), **wrong)


@pytest.mark.parametrize("wrong", [{"k_descale": torch.ones(3, 2)}, {"dropout_p": 0.5}])
def test_what_is_not_served_for_packed_sequences_is_refused_by_name(wrong: dict[str, Any]) -> None:
    bounds = [torch.tensor(bounds_row, dtype=torch.int32) for bounds_row in BOUNDS]
    with pytest.raises(UsageError, match=rf"flash_attn_varlen_func: {next(iter(wrong))}.*is not supported"):
        flash_attn_varlen_func(*qkv(), *bounds, 7, 10, **wrong)


@pytest.mark.parametrize("window", [(-1, 0), (3, 0), (2, 4)])
def test_gradients_of_packed_sequences_are_those_of_each_alone(window: tuple[int, int]) -> None:
    bounds = [torch.tensor(bounds_row, dtype=torch.int32) for bounds_row in BOUNDS]
    given = [tensor.requires_grad_() for tensor in qkv()]
    o, lse, _ = flash_attn_varlen_func(*given, *bounds, 7, 10, window_size=window, return_attn_probs=True)
    (o.float().square().sum() + lse.sum()).backward()
    doubles = [tensor.detach().double().requires_grad_() for tensor in given]
    total = torch.zeros(())
    for (first, end), (key, last) in zip(*map(pairwise, BOUNDS), strict=True):
        if end > first:
            q, k, v = doubles[0][first:end], doubles[1][key:last], doubles[2][key:last]
            left, right = window
            visible = near(end - first, last - key, left if left >= 0 else 99, right)
            expected, sums = exact(q[None], k[None], v[None], visible)
            total = total + expected.square().sum() + sums.sum()
    total.backward()
    for ours, theirs in zip(given, doubles, strict=True):
        assert torch.allclose(ours.grad.double(), theirs.grad, atol=1e-2)


def test_a_compiled_graph_keeps_packed_sequences_as_one_node() -> None:
    bounds = [torch.tensor(bounds_row, dtype=torch.int32) for bounds_row in BOUNDS]
    compiled = torch.compile(flash_attn_varlen_func, backend="aot_eager", fullgraph=True)
    given = (*qkv(), *bounds, 7, 10)
    assert torch.equal(compiled(*given), flash_attn_varlen_func(*given))
