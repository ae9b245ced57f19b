"""Tests of the delta rule and the gated delta rule against float64: gradients, states, packed sequences."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tuner.torch  # noqa: E402
from tuner.errors import InputError  # noqa: E402

T, H, HV, K, V = 19, 1, 2, 16, 32


def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    q, k = (torch.nn.functional.normalize(torch.randn(1, T, H, K), dim=-1) for _ in range(2))
    g, beta = -torch.rand(1, T, HV), torch.rand(1, T, HV)
    made = {"q": q, "k": k, "v": torch.randn(1, T, HV, V), "g": g, "beta": beta}
    return {name: x.requires_grad_() for name, x in made.items()}


def recurrence(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    q, k = (x.repeat_interleave(HV // H, dim=2) for x in (q * K**-0.5, k))
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t] * beta[:, t][..., None], error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, dim=1), state


def agrees(found: Any, expected: Any, given: list[Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5
    gradients = [torch.autograd.grad(sum((x**2).sum() for x in pair), given) for pair in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("name", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"])
def test_a_gate_of_a_head_is_that_of_its_channels(name: str) -> None:
    given, state = tensors(), torch.randn(1, HV, K, V, requires_grad=True)
    result = getattr(tuner.torch, name)(**given, initial_state=state, output_final_state=True)
    agrees(result, recurrence(**given, state=state), [*given.values(), state])


def test_the_delta_rule_has_no_gate() -> None:
    given = tensors()
    del given["g"]
    result = tuner.torch.chunk_delta_rule(**given, output_final_state=True)
    zeros = {"g": torch.zeros(1, T, HV), "state": torch.zeros(1, HV, K, V)}
    agrees(result, recurrence(**given, **zeros), [*given.values()])


def test_packed_sequences_start_anew() -> None:
    given, bounds = tensors(), torch.tensor([0, 7, T])
    result, state = tuner.torch.chunk_gated_delta_rule(**given, cu_seqlens=bounds, output_final_state=True)
    parts = [{name: x[:, part] for name, x in given.items()} for part in (slice(0, 7), slice(7, T))]
    expected = [recurrence(**part, state=torch.zeros(1, HV, K, V)) for part in parts]
    outputs, states = zip(*expected, strict=True)
    agrees([result, state], [torch.cat(outputs, 1), torch.cat(states, 0)], [*given.values()])


def test_a_gate_in_the_kernel_is_made_of_what_a_layer_learns() -> None:
    given, rates, bias = tensors(), torch.randn(HV), torch.randn(HV)
    result, _ = tuner.torch.fused_recurrent_gated_delta_rule(
        **given, use_gate_in_kernel=True, A_log=rates, dt_bias=bias
    )
    gate = -rates.exp() * torch.nn.functional.softplus(given.pop("g") + bias)
    expected, _ = recurrence(**given, g=gate, state=torch.zeros(1, HV, K, V))
    assert (result - expected).abs().max() <= 2e-5


def test_what_is_not_served_is_named() -> None:
    given = tensors()
    with pytest.raises(InputError, match="chunk_gated_delta_rule: cp_context=1 is not supported"):
        tuner.torch.chunk_gated_delta_rule(**given, cp_context=1)
    with pytest.raises(InputError, match="gv=a tensor is not supported"):
        tuner.torch.fused_recurrent_gated_delta_rule(**given, gv=given["v"])
    with pytest.raises(InputError, match="a gate for each key channel is chunk_kda's"):
        tuner.torch.chunk_gated_delta_rule(**{**given, "g": torch.zeros(1, T, HV, K)})
    with pytest.raises(InputError, match="chunk_simple_gla is not supported"):
        tuner.torch.delta.chunk_simple_gla(given["q"])
