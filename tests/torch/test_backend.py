"""Tests of torch's native flash attention on these kernels: the calls that torch makes on CUDA, made on the CPU."""

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import attention  # noqa: E402

from tuner.errors import UsageError  # noqa: E402
from tuner.torch import backend  # noqa: E402


def qkv(*shape: int) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(*shape, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("name", list(backend.KERNELS))
def test_each_takes_what_torch_s_operator_is_called_with(name: str) -> None:
    schema = getattr(torch.ops.aten, name).default._schema
    by_place = {argument.name: None for argument in schema.arguments if not argument.kwarg_only}
    named = {argument.name: None for argument in schema.arguments if argument.kwarg_only}
    inspect.signature(backend.KERNELS[name]).bind(*by_place.values(), **named)


@pytest.mark.parametrize("is_causal", [False, True])
def test_results_and_gradients_are_torch_s(is_causal: bool) -> None:
    given = qkv(2, 4, 6, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=is_causal, scale=0.3)
    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, given, upstream)
    with torch.no_grad():
        o, lse, *actual = backend.KERNELS["_scaled_dot_product_flash_attention"](*given, 0.0, is_causal, scale=0.3)
        assert (o - expected).abs().max() <= 1e-6
        seeds = actual[4:6]
        backward = backend.KERNELS["_scaled_dot_product_flash_attention_backward"]
        result = backward(upstream, *given, o, lse, *actual[:4], 0.0, is_causal, *seeds, scale=0.3)
    assert all((one - other).abs().max() <= 2e-6 for one, other in zip(result, gradients, strict=True))


def test_packed_sequences_are_told_by_where_they_begin() -> None:
    q, k, v = (tensor.detach() for tensor in qkv(9, 4, 16))
    bounds = torch.tensor([0, 4, 9], dtype=torch.int32)
    o, lse, *_ = backend.KERNELS["_flash_attention_forward"](q, k, v, bounds, bounds, 5, 5, 0.0, True, False)
    back = backend.KERNELS["_flash_attention_backward"]
    result = back(torch.ones_like(o), q, k, v, o, lse, bounds, bounds, 5, 5, 0.0, True, None, None)
    for part in (slice(0, 4), slice(4, 9)):
        rows = [tensor[part].transpose(0, 1).detach().requires_grad_() for tensor in (q, k, v)]
        expected = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True)
        assert (o[part].transpose(0, 1) - expected).abs().max() <= 1e-6
        for one, other in zip(result, torch.autograd.grad(expected.sum(), rows), strict=True):
            assert (one[part].transpose(0, 1) - other).abs().max() <= 2e-6


def test_what_is_not_served_is_named() -> None:
    given = [tensor.detach() for tensor in qkv(2, 4, 6, 16)]
    with pytest.raises(UsageError, match=r"dropout_p=0\.5 is not supported"):
        backend.KERNELS["_scaled_dot_product_flash_attention"](*given, 0.5)
    bounds = torch.tensor([0, 6], dtype=torch.int32)
    with pytest.raises(UsageError, match="seqused_k=a tensor is not supported"):
        backend.KERNELS["_flash_attention_forward"](*given, None, None, 6, 6, 0.0, False, False, seqused_k=bounds[1:])


def test_windows_are_of_both_sides() -> None:
    q, k, v = (tensor.detach() for tensor in qkv(2, 6, 4, 16))
    window = {"window_size_left": 0, "window_size_right": 2}
    o, lse, *_ = backend.KERNELS["_flash_attention_forward"](q, k, v, None, None, 6, 6, 0.0, False, False, **window)
    back = backend.KERNELS["_flash_attention_backward"]
    actual = (None, None, 6, 6, 0.0, False, None, None)
    result = back(torch.ones_like(o), q, k, v, o, lse, *actual, **window)
    rows = [tensor.transpose(1, 2).detach().requires_grad_() for tensor in (q, k, v)]
    mask = torch.ones(6, 6, dtype=torch.bool).triu().tril(2)
    expected = torch.nn.functional.scaled_dot_product_attention(*rows, attn_mask=mask)
    assert (o.transpose(1, 2) - expected).abs().max() <= 1e-6
    for one, other in zip(result, torch.autograd.grad(expected.sum(), rows), strict=True):
        assert (one.transpose(1, 2) - other).abs().max() <= 2e-6


def test_torch_lists_it_and_takes_it_back() -> None:
    assert "kerntune" in attention.list_flash_attention_impls()
    assert attention.current_flash_attention_impl() is None
    attention.activate_flash_attention_impl("kerntune")
    assert attention.current_flash_attention_impl() == "kerntune"
    attention.restore_flash_attention_impl()
    assert attention.current_flash_attention_impl() is None
