"""Tests of torch's scaled_dot_product_attention on these kernels, as a function and within a context."""

import threading
import warnings
from collections.abc import Iterator
from inspect import signature
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner.dispatcher.untuned_warnings import UntunedWarning  # noqa: E402
from tuner.torch import FallbackWarning, flash_attn_func, scaled_dot_product_attention, sdpa  # noqa: E402

THEIRS = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _no_fallback() -> Iterator[None]:
    """What torch computes is an error, but where a test expects it; and each test is told of it anew."""
    import tuner.torch.attention as module

    module._warn.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        warnings.simplefilter("ignore", UntunedWarning)
        yield


def qkv(queries: int = 6, keys: int = 6, kv_heads: int = 4, D: int = 16, lead: tuple[int, ...] = (2,)) -> list[Any]:
    torch.manual_seed(0)
    sizes = ((4, queries), (kv_heads, keys), (kv_heads, keys))
    return [torch.randn(*lead, *size, D, requires_grad=True) for size in sizes]


def agrees(given: list[Any], **options: Any) -> None:
    """Results, and gradients."""
    actual, expected = (call(*given, **options) for call in (scaled_dot_product_attention, THEIRS))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert (actual - expected).abs().max() <= 2e-6
    sizes = [i for i, size in enumerate(expected.shape) if size > 1]
    assert [actual.stride(i) for i in sizes] == [expected.stride(i) for i in sizes]
    upstream = torch.randn_like(expected)
    for one, other in zip(
        *(torch.autograd.grad(result, given, upstream) for result in (actual, expected)), strict=True
    ):
        assert (one - other).abs().max() <= 5e-6


def test_arguments_have_the_order_of_torchs() -> None:
    options = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    parameters = signature(scaled_dot_product_attention).parameters
    assert list(parameters) == ["query", "key", "value", *options]
    assert {name: parameters[name].default for name in options} == options


@pytest.mark.parametrize("scale", [0.0, -0.4])
def test_a_scale_may_be_negative_or_zero(scale: float) -> None:
    agrees(qkv(3, 5), scale=scale)


@pytest.mark.parametrize(("queries", "keys", "lead"), [(0, 3, (2,)), (3, 0, (2,)), (0, 0, ()), (3, 0, (1, 2))])
def test_without_queries_or_keys_there_is_torchs_result(queries: int, keys: int, lead: tuple[int, ...]) -> None:
    given = qkv(queries, keys, lead=lead)
    result, expected = (call(*given) for call in (scaled_dot_product_attention, THEIRS))
    assert torch.equal(result, expected)
    gradients = [torch.autograd.grad(o.sum(), given) for o in (result, expected)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*gradients, strict=True))


@pytest.mark.parametrize("heads_last", [False, True])
def test_results_have_the_strides_of_queries(heads_last: bool) -> None:
    given = qkv(6, 9)
    if heads_last:
        given = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in given]
    agrees(given)
    agrees(qkv(6, 9, D=12))


def test_in_a_graph_torch_computes_masks() -> None:
    def step(q: Any, k: Any, v: Any, mask: Any) -> Any:
        masked = scaled_dot_product_attention(q, k, v, mask)
        return masked + scaled_dot_product_attention(q, k, v, is_causal=True)

    given, mask = qkv(), torch.ones(2, 1, 1, 6, dtype=torch.bool).tril(3)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        result = compiled(*given, mask)
    expected = THEIRS(*given, mask) + THEIRS(*given, is_causal=True)
    assert (result - expected).abs().max() <= 2e-6


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (5, 24), (24, 5), (1, 7)])
def test_causal_is_aligned_at_the_first_query_and_key(queries: int, keys: int, is_causal: bool) -> None:
    agrees(qkv(queries, keys), is_causal=is_causal)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (qkv(kv_heads=2), {"enable_gqa": True, "scale": 0.3}),
        (qkv(lead=()), {"is_causal": True}),
        (qkv(lead=(2, 3)), {}),
    ],
    ids=["grouped_and_scaled", "three_dims", "five_dims"],
)
def test_shapes_are_torchs(given: list[Any], options: dict[str, Any]) -> None:
    agrees(given, **options)


THERE = torch.tensor([[True] * 3 + [False] * 4, [False, True, False] + [True] * 4])


@pytest.mark.parametrize(
    "mask",
    [
        THERE[:, None, None],
        THERE[:, None, None].expand(2, 4, 5, 7).contiguous(),
        torch.zeros(2, 1, 1, 7).masked_fill(~THERE[:, None, None], -torch.inf),
        THERE[:1],
        torch.ones(5, 7, dtype=torch.bool).tril(),
        torch.zeros(5, 7).masked_fill(torch.ones(5, 7).triu(1).bool(), -torch.inf),
    ],
    ids=["of_keys", "of_keys_in_full", "of_keys_as_numbers", "of_one_row", "causal", "causal_as_numbers"],
)
def test_masks_that_leave_keys_out_are_recognised(mask: Any) -> None:
    agrees(qkv(5, 7), attn_mask=mask)


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        (qkv(), {"attn_mask": torch.randn(6, 6)}, "numbers but 0 and -inf"),
        (qkv(), {"attn_mask": torch.rand(6, 6) > 0.2}, "other than keys"),
        (qkv(), {"attn_mask": torch.randn(6, 6, requires_grad=True)}, "a gradient"),
        ([tensor.double() for tensor in qkv()], {}, "float64"),
        (qkv(), {"dropout_p": 1e-9}, "dropout_p"),
    ],
    ids=["bias", "pattern", "learned", "float64", "dropout"],
)
def test_what_is_not_served_torch_computes_and_says_so_once(given: list[Any], options: Any, why: str) -> None:
    with pytest.warns(FallbackWarning, match=why):
        result = scaled_dot_product_attention(*given, **options)
    assert torch.allclose(result, THEIRS(*given, **options))
    scaled_dot_product_attention(*given, **options)  # a second warning would be an error


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (qkv(kv_heads=2), {}),
        (qkv(5, 7), {"attn_mask": torch.ones(3, 1, 1, 7, dtype=torch.bool)}),
    ],
    ids=["heads", "mask"],
)
def test_what_torch_refuses_is_refused(given: list[Any], options: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError):
        THEIRS(*given, **options)
    with pytest.raises(RuntimeError), pytest.warns(FallbackWarning):
        scaled_dot_product_attention(*given, **options)


def test_autocast_casts_as_torchs_does() -> None:
    with torch.autocast("cpu"):
        result, expected = (call(*qkv()) for call in (scaled_dot_product_attention, THEIRS))
    assert result.dtype == expected.dtype == torch.bfloat16
    assert torch.allclose(result.float(), expected.float(), atol=2e-2)


@pytest.mark.parametrize("is_causal", [False, True])
def test_sequences_of_different_lengths_are_nested_tensors(is_causal: bool) -> None:
    q = torch.nested.nested_tensor([torch.randn(n, 4, 16) for n in (3, 6)], layout=torch.jagged, requires_grad=True)
    k, v = (torch.nested.nested_tensor_from_jagged(torch.randn(9, 4, 16), offsets=q.offsets()) for _ in range(2))
    result = scaled_dot_product_attention(*(tensor.transpose(1, 2) for tensor in (q, k, v)), is_causal=is_causal)
    for n, (o, *given) in enumerate(zip(result.unbind(), q.unbind(), k.unbind(), v.unbind(), strict=True)):
        expected = THEIRS(*(tensor.transpose(0, 1) for tensor in given), is_causal=is_causal)
        assert (o - expected).abs().max() <= 2e-6, n
    result.transpose(1, 2).values().sum().backward()
    assert q.grad.shape == q.shape


def test_flash_attn_s_signature_refuses_nested_tensors_by_name() -> None:
    q = torch.nested.nested_tensor([torch.randn(n, 4, 16) for n in (3, 6)], layout=torch.jagged)
    with pytest.raises(ValueError, match="nested tensors are not supported here"):
        flash_attn_func(q, q, q)


def calls_of(call: Any) -> tuple[Any, int]:
    """What it returns within the context, and how often the operator ran."""
    count = 0

    class Counts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal count
            count += func.namespace == "tuner"
            return func(*args, **(kwargs or {}))

    with sdpa(), Counts():
        return call(), count


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_torchs_own_module_calls_it_in_the_context(padded: bool, grad: bool) -> None:
    torch.manual_seed(0)
    module, x = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(2, 7, 32)
    padding = {"key_padding_mask": torch.arange(7).expand(2, 7) >= torch.tensor([[7], [4]])} if padded else {}
    with torch.set_grad_enabled(grad):
        expected = module(x, x, x, need_weights=False, **padding)[0]
        (result, _), count = calls_of(lambda: module(x, x, x, need_weights=False, **padding))
    assert count == 1
    assert (result - expected).abs().max() <= 2e-6


def test_the_context_is_of_one_thread_and_ends_with_an_error() -> None:
    given, seen = qkv(), []

    def elsewhere() -> None:
        seen.append(torch.equal(torch.nn.functional.scaled_dot_product_attention(*given), THEIRS(*given)))
        with sdpa():
            pass

    with pytest.raises(KeyError), sdpa(), sdpa():
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        inside = torch.nn.functional.scaled_dot_product_attention(*given)
        raise KeyError
    assert seen == [True]
    assert torch.equal(inside, scaled_dot_product_attention(*given))
    assert torch.nn.functional.scaled_dot_product_attention is THEIRS
    _, count = calls_of(lambda: None)
    assert count == 0 and torch.nn.functional.scaled_dot_product_attention is THEIRS
