"""Tests by torch's own check of custom operators: schema, gradients, fake tensors, and tracing with dynamic shapes."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tuner.torch  # noqa: E402, F401
from tuner import operators  # noqa: E402


def rand(*shape: int, grad: bool = False) -> Any:
    return torch.randn(*shape, dtype=torch.bfloat16).requires_grad_(grad)


def ints(*values: Any) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def attention(*, grad: bool = False) -> list[Any]:
    torch.manual_seed(0)
    return [rand(2, 5, heads, 16, grad=grad) for heads in (4, 2, 2)]


def kda(*, grad: bool = False) -> list[Any]:
    torch.manual_seed(0)
    q, k, v = (rand(1, 9, 2, 16, grad=grad) for _ in range(3))
    gate = -torch.rand(1, 9, 2, 16)
    return [q, k, v, gate.requires_grad_(grad), torch.rand(1, 9, 2).requires_grad_(grad)]


def attention_backward(name: str, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    given = attention()
    o, lse = getattr(torch.ops.tuner, name)(*given, **options)
    return [torch.randn_like(o), *given, o, lse], options


def pages() -> list[Any]:
    return [rand(3, 16, 2, 16), rand(3, 16, 2, 16), ints([0, 1], [2, 0]), ints(20, 7)]


def cases() -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """An operator's arguments."""
    window, carries = {"window": 3, "sinks": 1}, {"output_final_state": True}
    scan = [rand(1, 9, 2, 16, grad=True) for _ in range(3)]
    plain = [argument.detach() for argument in scan]
    return {
        "flash_attention": (attention(grad=True), {"causal": True}),
        "flash_attention_backward": attention_backward("flash_attention", causal=True),
        "streaming_attention": (attention(grad=True), window),
        "streaming_attention_backward": attention_backward("streaming_attention", **window),
        "paged_attention": ([attention()[0], *pages()], {}),
        "mla_decode": ([rand(2, 1, 4, 32), rand(3, 16, 1, 32), *pages()[2:], 16], {}),
        "linear_attention": ([*scan, torch.rand(2).requires_grad_()], carries),
        "linear_attention_backward": ([*plain, torch.rand(2), rand(1, 9, 2, 16)], {}),
        "kda": (kda(grad=True), carries),
        "kda_backward": ([*kda(), rand(1, 9, 2, 16)], {}),
    }


def test_every_operator_has_a_case() -> None:
    assert set(cases()) == {
        name for name in operators.names() if operators.load(name).folder.parent.name == "templates"
    }


@pytest.mark.parametrize("name", list(cases()))
def test_torch_finds_its_rules_kept(name: str) -> None:
    given, options = cases()[name]
    result = torch.library.opcheck(getattr(torch.ops.tuner, name).default, tuple(given), options)
    assert set(result.values()) == {"SUCCESS"}
