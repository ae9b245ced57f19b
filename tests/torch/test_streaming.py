"""Tests of streaming_attention's gradients in torch; on the CPU they run on the emulator."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tuner.torch  # noqa: E402, F401
from tuner.errors import InputError  # noqa: E402

SIZES = {"window": 4, "sinks": 2}


def qkv(dtype: Any = torch.bfloat16) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(1, n, t, 16).to(dtype).requires_grad_() for n, t in ((4, 9), (2, 12), (2, 12))]


def exact(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """o and lse in float64, as the operator defines them."""
    position, key = torch.arange(9)[:, None] + 3, torch.arange(12)
    visible = (key <= position) & ((key < SIZES["sinks"]) | (position - key < SIZES["window"]))
    k, v = (array.repeat_interleave(2, dim=1) for array in (k, v))
    scores = (q @ k.transpose(-2, -1) / 4).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def loss(o: Any, lse: Any, parts: str) -> Any:
    """Of some of the outputs; no two elements count alike."""
    outputs = [output for name, output in (("o", o), ("lse", lse)) if name in parts.split()]
    return sum((output.double() * torch.arange(output.numel()).view(output.shape).cos()).sum() for output in outputs)


@pytest.mark.parametrize(("parts", "dtype"), [("o", "bfloat16"), ("o lse", "bfloat16"), ("lse", "float32")])
def test_gradients_flow_through_the_outputs_that_a_loss_uses(parts: str, dtype: str) -> None:
    given = qkv(getattr(torch, dtype))
    right = [tensor.detach().double().requires_grad_() for tensor in given]
    loss(*torch.ops.tuner.streaming_attention(*given, **SIZES, layout="bhtd"), parts).backward()
    loss(*exact(*right), parts).backward()
    for ours, theirs in zip(given, right, strict=True):
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert torch.allclose(ours.grad.double(), expected, atol=5e-2 if dtype == "bfloat16" else 1e-4)


def test_a_gradient_stays_in_a_compiled_graph() -> None:
    def step(given: list[Any]) -> Any:
        return loss(*torch.ops.tuner.streaming_attention(*given, **SIZES, layout="bhtd"), "o lse")

    eager, compiled = qkv(), qkv()
    step(eager).backward()
    torch.compile(step, backend="aot_eager", fullgraph=True)(compiled).backward()
    assert all(torch.equal(ours.grad, theirs.grad) for ours, theirs in zip(compiled, eager, strict=True))


@pytest.mark.parametrize("option", [{"seq_k": 40}, {"cache_seqlens": torch.tensor([12], dtype=torch.int32)}])
def test_a_gradient_through_a_cache_is_refused_in_the_forward_pass(option: dict[str, Any]) -> None:
    q, k, v = qkv()
    with pytest.raises(InputError, match=f"streaming_attention has no gradient with {next(iter(option))}"):
        torch.ops.tuner.streaming_attention(q, k, v, window=2, sinks=1, layout="bhtd", **option)
