"""Tests of empty batches as torch tensors: eager, in gradients, compiled, and in drop-in functions."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner.dispatcher import UntunedWarning  # noqa: E402
from tuner.torch import (  # noqa: E402
    chunk_kda,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
)

SIZES = pytest.mark.parametrize(("B", "T", "S"), [(0, 5, 7), (2, 0, 7), (2, 5, 0)], ids=["batch", "queries", "keys"])

pytestmark = pytest.mark.filterwarnings(
    "error::tuner.dispatcher.untuned_warnings.UntunedWarning"
)  # nothing runs that could be tuned


def half(*shape: int, grad: bool = False) -> Any:
    return torch.ones(shape, dtype=torch.float16, requires_grad=grad)


def ints(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def qkv(B: int, T: int, S: int) -> list[Any]:
    return [half(B, T, 4, 64, grad=True), half(B, S, 2, 64, grad=True), half(B, S, 2, 64, grad=True)]


def windowed(*given: Any) -> Any:
    return torch.ops.tuner.streaming_attention(*given, window=4)[0]


@SIZES
@pytest.mark.parametrize("call", [flash_attn_func, windowed])
def test_it_agrees_with_torchs_own_attention(call: Callable[..., Any], B: int, T: int, S: int) -> None:
    given = qkv(B, T, S)
    own = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in given), enable_gqa=True)
    result, expected = call(*given), own.transpose(1, 2)
    assert torch.equal(result, expected)
    slopes, same = (torch.autograd.grad(o.sum(), given) for o in (result, expected))
    assert all(torch.equal(slope, other) for slope, other in zip(slopes, same, strict=True))


@SIZES
@pytest.mark.parametrize("place", ["meta", "cpu"])
def test_shapes_without_memory_and_compiled_code_are_as_eager_code(
    place: str,
    B: int,
    T: int,
    S: int,
) -> None:
    torch._dynamo.reset()
    call = torch.ops.tuner.flash_attention
    o, lse = call(*qkv(B, T, S))
    run = torch.compile(call, backend="aot_eager", fullgraph=True) if place == "cpu" else call
    again = run(*(x.to(place) for x in qkv(B, T, S)))
    assert [(x.shape, x.dtype) for x in again] == [(x.shape, x.dtype) for x in (o, lse)]
    assert place == "meta" or torch.equal(again[0], o)


def test_a_compiled_step_serves_batches_that_run_dry() -> None:
    torch._dynamo.reset()
    step = torch.compile(lambda x: torch.ops.tuner.flash_attention(x, x, x)[0] + 1, backend="aot_eager", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntunedWarning)
        shapes = [tuple(step(half(B, 4, 1, 16)).shape) for B in (3, 2, 0, 4)]
    assert shapes == [(3, 4, 1, 16), (2, 4, 1, 16), (0, 4, 1, 16), (4, 4, 1, 16)]


def test_what_flash_attn_and_flashmla_code_calls_takes_no_requests() -> None:
    rows, keys = half(0, 4, 64, grad=True), half(0, 2, 64)
    for bounds in (ints(0), ints(0, 0)):
        assert flash_attn_varlen_func(rows, keys, keys, bounds, bounds, 0, 0, causal=True).shape == (0, 4, 64)
    cache, tables = half(8, 16, 2, 64), torch.zeros(0, 4, dtype=torch.int32)
    for queries, causal in ((1, True), (3, True), (3, False)):
        q = half(0, queries, 4, 64)
        options = {"cache_seqlens": ints(), "block_table": tables, "causal": causal}
        assert flash_attn_with_kvcache(q, cache, cache, **options).shape == q.shape
        new = half(0, queries, 2, 64)
        assert flash_attn_with_kvcache(q, cache, cache, new, new, **options).shape == q.shape
        out, lse = flash_mla_with_kvcache(q, half(8, 16, 1, 64), tables, ints(), 32, causal=causal)
        assert (out.shape, lse.shape) == ((0, queries, 4, 32), (0, 4, queries))


def test_the_gradient_of_a_state_passes_where_there_are_no_tokens() -> None:
    tokens = [half(2, 0, 2, 32, grad=True) for _ in range(4)]
    state = torch.ones(2, 2, 32, 32, requires_grad=True)
    o, last = chunk_kda(*tokens, half(2, 0, 2), initial_state=state, output_final_state=True)
    assert o.shape == (2, 0, 2, 32) and torch.equal(last, state)
    *slopes, slope = torch.autograd.grad((2 * last).sum() + o.sum(), [*tokens, state])
    assert torch.equal(slope, torch.full_like(state, 2)) and all(slope.numel() == 0 for slope in slopes)
