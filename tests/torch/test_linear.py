"""Tests of linear_attention under torch's autograd."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tuner.torch  # noqa: E402, F401  # registers the operators

H, D = 2, 8
LENGTHS = (5, 0, 14)
TOKENS = ("q", "k", "v")
BETA_SHAPES: dict[str, tuple[int, ...]] = {"head": (H,), "channel": (H, D)}


def drawn(dtype: Any, beta_shape: tuple[int, ...] = (H,), sequences: int = 1) -> dict[str, Any]:
    torch.manual_seed(0)
    rows = {name: torch.randn(1, sum(LENGTHS), H, D).to(dtype) for name in TOKENS}
    state = torch.rand(sequences, 2, H, D) + 0.1
    return {**rows, "beta": 0.7 + 0.3 * torch.rand(beta_shape), "initial_state": state}


def learned(given: dict[str, Any], dtype: Any = None) -> dict[str, Any]:
    return {name: x.detach().clone().to(dtype or x.dtype).requires_grad_() for name, x in given.items()}


def recurrence(x: dict[str, Any], lengths: tuple[int, ...] = LENGTHS) -> tuple[Any, Any]:
    """linear_attention token by token: plain torch."""
    weight, beta = x["k"].sigmoid(), x["beta"] if x["beta"].ndim == 2 else x["beta"][..., None]
    outputs, states = [], []
    for i, length in enumerate(lengths):
        s, n = x["initial_state"][i]
        for t in range(sum(lengths[:i]), sum(lengths[:i]) + length):
            n = beta * n + weight[0, t]
            s = beta * s + weight[0, t] * x["v"][0, t]
            outputs.append(x["q"][0, t] * s / n)
        states.append(torch.stack([s, n]))
    return torch.stack(outputs)[None], torch.stack(states)


def loss(o: Any, state: Any) -> Any:
    """One that weights no two elements alike."""
    return (o.double() * torch.arange(o.numel()).view(o.shape).cos()).sum() + state.double().square().sum()


@pytest.mark.parametrize("decay", BETA_SHAPES)
def test_the_gradients_are_those_of_the_recurrence(decay: str) -> None:
    given = drawn(torch.float32, BETA_SHAPES[decay], len(LENGTHS))
    ours, exact = learned(given), learned(given, torch.float64)
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    loss(*torch.ops.tuner.linear_attention(**ours, cu_seqlens=cu_seqlens, output_final_state=True)).backward()
    loss(*recurrence(exact)).backward()
    for name in given:
        assert ours[name].grad.shape == ours[name].shape
        torch.testing.assert_close(ours[name].grad.double(), exact[name].grad, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
def test_beta_may_be_a_number_that_has_no_gradient(layout: str) -> None:
    given = {name: x for name, x in drawn(torch.bfloat16).items() if name in TOKENS}
    exact = learned(given, torch.float64)
    ours = learned(given if layout == "bthd" else {name: x.transpose(1, 2) for name, x in given.items()})
    o, state = torch.ops.tuner.linear_attention(**ours, beta=0.9, layout=layout)
    o.float().sum().backward()
    zeros, beta = torch.zeros(1, 2, H, D, dtype=torch.float64), torch.full((1,), float(torch.tensor(0.9)))
    recurrence({**exact, "beta": beta, "initial_state": zeros}, (sum(LENGTHS),))[0].sum().backward()
    assert state.numel() == 0
    for name, x in ours.items():
        gradient = x.grad if layout == "bthd" else x.grad.transpose(1, 2)
        torch.testing.assert_close(gradient.double(), exact[name].grad, rtol=1e-2, atol=1e-3, msg=name)


def test_a_loss_of_the_final_state_alone_has_gradients() -> None:
    given = drawn(torch.float32)
    ours, exact = learned(given), learned(given, torch.float64)
    torch.ops.tuner.linear_attention(**ours, output_final_state=True)[1].square().sum().backward()
    recurrence(exact, (sum(LENGTHS),))[1].square().sum().backward()
    for name in ("k", "v", "beta", "initial_state"):
        torch.testing.assert_close(ours[name].grad.double(), exact[name].grad, rtol=1e-5, atol=1e-5, msg=name)


def test_forward_and_backward_are_nodes_of_a_compiled_graph() -> None:
    given = drawn(torch.bfloat16)
    eager, compiled = learned(given), learned(given)

    def step(x: dict[str, Any]) -> Any:
        return loss(*torch.ops.tuner.linear_attention(**x, output_final_state=True))

    step(eager).backward()
    torch.compile(step, backend="aot_eager", fullgraph=True)(compiled).backward()
    assert all(torch.equal(eager[name].grad, compiled[name].grad) for name in given)
