"""Tests of kda under torch's autograd, and with flash-linear-attention's signatures."""

from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import InputError  # noqa: E402
from tuner.torch import chunk_kda, fused_recurrent_kda  # noqa: E402

H, HV, K, V = 1, 2, 16, 32
TENSORS = ("q", "k", "v", "g", "beta", "initial_state", "A_log", "dt_bias")
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_gate_in_kernel": True}
LENGTHS = (5, 0, 14)


def drawn(dtype: Any, tokens: int = 19, sequences: int = 1) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {"q": (H, K), "k": (H, K), "v": (HV, V), "g": (HV, K), "beta": (HV,)}
    rows = {name: torch.randn(1, tokens, *shape).to(dtype) for name, shape in shapes.items()}
    state = torch.randn(sequences, HV, K, V)
    return {**rows, "initial_state": state, "A_log": torch.randn(HV), "dt_bias": torch.randn(HV * K)}


def learned(given: dict[str, Any], dtype: Any = None) -> dict[str, Any]:
    return {name: x.detach().clone().to(dtype or x.dtype).requires_grad_() for name, x in given.items()}


def recurrence(x: dict[str, Any], lengths: tuple[int, ...], lower_bound: float | None) -> tuple[Any, Any]:
    """kda token by token, of raw inputs: plain torch."""
    q, k = (row / (row.square().sum(-1, keepdim=True) + 1e-6).sqrt() for row in (x["q"], x["k"]))
    raw, rate = x["g"] + x["dt_bias"].view(HV, K), x["A_log"].exp()[:, None]
    softplus = torch.nn.functional.softplus
    g = -rate * softplus(raw) if lower_bound is None else lower_bound * (rate * raw).sigmoid()
    beta, outputs, states = x["beta"].sigmoid(), [], []
    for n, length in enumerate(lengths):
        state = x["initial_state"][n]  # [HV, K, V]
        for t in range(sum(lengths[:n]), sum(lengths[:n]) + length):
            keys, queries = (row[0, t].repeat_interleave(HV // H, 0) for row in (k, q))
            state = state * g[0, t].exp()[..., None]
            error = x["v"][0, t] - torch.einsum("hkv,hk->hv", state, keys)
            state = state + torch.einsum("hk,hv->hkv", keys, beta[0, t][:, None] * error)
            outputs.append(torch.einsum("hkv,hk->hv", state, queries) * K**-0.5)
        states.append(state)
    return torch.stack(outputs)[None], torch.stack(states)


def loss(o: Any, state: Any) -> Any:
    """One that weights no two elements alike."""
    return (o.double() * torch.arange(o.numel()).view(o.shape).cos()).sum() + state.double().square().sum()


@pytest.mark.parametrize("lower_bound", [None, -4.0])
def test_the_gradients_are_those_of_the_recurrence(lower_bound: float | None) -> None:
    given = drawn(torch.float32, sum(LENGTHS), len(LENGTHS))
    ours, exact = learned(given), learned(given, torch.float64)
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0)
    options = {"lower_bound": lower_bound, "output_final_state": True, "cu_seqlens": cu_seqlens, **RAW}
    loss(*torch.ops.tuner.kda(**ours, **options)).backward()
    loss(*recurrence(exact, LENGTHS, lower_bound)).backward()
    for name in TENSORS:
        assert ours[name].grad.shape == ours[name].shape
        torch.testing.assert_close(ours[name].grad.double(), exact[name].grad, rtol=2e-4, atol=2e-4, msg=name)


def test_a_final_state_that_nobody_asked_for_needs_no_gradient() -> None:
    ours = learned(drawn(torch.bfloat16))
    o, state = torch.ops.tuner.kda(**ours, **RAW)
    (gradient,) = torch.autograd.grad(o.float().sum(), ours["q"])
    assert state.numel() == 0
    assert gradient.dtype == torch.bfloat16


def test_forward_and_backward_are_nodes_of_a_compiled_graph() -> None:
    given = drawn(torch.bfloat16)
    eager, compiled = learned(given), learned(given)

    def step(x: dict[str, Any]) -> Any:
        return loss(*chunk_kda(**x, output_final_state=True, **RAW))

    step(eager).backward()
    torch.compile(step, backend="aot_eager", fullgraph=True)(compiled).backward()
    assert all(torch.equal(eager[name].grad, compiled[name].grad) for name in TENSORS)


def test_states_that_are_updated_in_place_have_no_gradient_and_it_says_so() -> None:
    ours = learned(drawn(torch.bfloat16))
    with pytest.raises(InputError, match="q requires grad, and kda has no gradient where it updates state_pool"):
        torch.ops.tuner.kda(**ours, inplace_final_state=True, **RAW)


def test_wrong_options_are_refused_as_the_dispatcher_refuses_them() -> None:
    with pytest.raises(InputError, match="A_log goes with use_gate_in_kernel"):
        torch.ops.tuner.kda(**drawn(torch.bfloat16))


def test_arguments_have_the_names_and_the_order_of_chunk_kda() -> None:
    names = [
        name
        for name, parameter in signature(chunk_kda).parameters.items()
        if parameter.kind.name == "POSITIONAL_OR_KEYWORD"
    ]
    assert " ".join(names) == (
        "q k v g beta scale initial_state output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel "
        "use_beta_sigmoid_in_kernel allow_neg_eigval safe_gate lower_bound disable_recompute "
        "return_intermediate_states state_v_first cu_seqlens cu_seqlens_cpu cp_context use_graph max_num_seqs"
    )


def test_arguments_have_the_names_and_the_order_of_fused_recurrent_kda() -> None:
    names = list(signature(fused_recurrent_kda).parameters)[:-1]
    assert " ".join(names) == (
        "q k v g beta A_log dt_bias scale initial_state output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel "
        "use_beta_sigmoid_in_kernel allow_neg_eigval lower_bound state_v_first cu_seqlens"
    )


def test_both_are_the_operator_and_return_no_state_that_was_not_asked_for() -> None:
    given = drawn(torch.bfloat16)
    expected, _ = torch.ops.tuner.kda(**given, **RAW)
    rows = [given[name] for name in ("q", "k", "v", "g", "beta")]
    o, state = chunk_kda(**given, **RAW)
    again, _ = fused_recurrent_kda(*rows, given["A_log"], given["dt_bias"], None, given["initial_state"], **RAW)
    assert state is None
    assert torch.equal(o, expected)
    assert torch.equal(again, torch.ops.tuner.kda(**given, **RAW, precision="fp32")[0])  # as a recurrence has it


def test_parameters_of_the_gate_in_16_bits_are_used_in_fp32_and_have_their_gradient() -> None:
    ours = learned(drawn(torch.bfloat16))
    for name in ("A_log", "dt_bias"):
        ours[name] = ours[name].detach().bfloat16().requires_grad_()
    chunk_kda(**ours, **RAW)[0].float().sum().backward()
    assert [ours[name].grad.dtype for name in ("A_log", "dt_bias")] == [torch.bfloat16] * 2


def test_with_a_lower_bound_the_gates_rate_may_be_absent_and_is_zero() -> None:
    given = drawn(torch.bfloat16)
    zero = given | {"A_log": torch.zeros(HV)}
    expected, _ = chunk_kda(**zero, lower_bound=-4.0, **RAW)
    given.pop("A_log")
    assert torch.equal(chunk_kda(**given, lower_bound=-4.0, **RAW)[0], expected)


def test_the_gates_parameters_are_ignored_without_its_flag() -> None:
    given = drawn(torch.bfloat16)
    given["g"] = -given["g"].abs()
    plain = {name: x for name, x in given.items() if name not in ("A_log", "dt_bias")}
    assert torch.equal(chunk_kda(**given, lower_bound=-5.0)[0], chunk_kda(**plain)[0])


def test_rows_that_kernels_cannot_address_are_copied() -> None:
    given = drawn(torch.bfloat16)
    expected, _ = chunk_kda(**given, **RAW)
    odd = torch.zeros(1, 19, HV, V + 4, dtype=torch.bfloat16)
    odd[..., 4:] = given["v"]
    assert torch.equal(chunk_kda(**given | {"v": odd[..., 4:]}, **RAW)[0], expected)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"return_intermediate_states": True}, "return_intermediate_states=True is not supported"),
        ({"cp_context": 7}, "cp_context=7 is not supported"),
        ({"cp_context": SimpleNamespace(group=None)}, "cp_context=a SimpleNamespace is not supported"),
        ({"ssm_states": 7}, "ssm_states=7 is not supported"),
        ({"A_log": None}, "needs an A_log"),
    ],
)
def test_what_is_not_served_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        chunk_kda(**drawn(torch.bfloat16) | RAW | wrong)
