"""Tests of kda with flash-linear-attention's signatures, compared with its own kernels, interpreted on the CPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch.fla_on_cpu import run  # noqa: E402
from tuner import dispatcher  # noqa: E402
from tuner.dispatcher import UntunedWarning  # noqa: E402
from tuner.errors import InputError  # noqa: E402
from tuner.torch import chunk_kda, fused_recurrent_kda  # noqa: E402

pytestmark = pytest.mark.timeout(660)  # FLA's kernels are interpreted, for minutes where others compute as well
SCRIPT = Path(__file__).with_name("fla_on_cpu.py")
H, HV, K, V = 1, 2, 16, 32
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_gate_in_kernel": True}
SAFE = {"safe_gate": True, "output_final_state": True}
CU_SEQLENS = (0, 5, 5, 71)


def drawn(tokens: int = 9, batch: int = 1, states: int = 1, dtype: Any = torch.float32) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {"q": (H, K), "k": (H, K), "v": (HV, V), "g": (HV, K), "beta": (HV,)}
    rows = {name: torch.randn(batch, tokens, *shape).to(dtype) for name, shape in shapes.items()}
    return {**rows, "initial_state": torch.randn(states, HV, K, V)}


def plain(tokens: int) -> dict[str, Any]:
    """What needs no step in the kernel."""
    x = drawn(tokens)
    unit = {name: torch.nn.functional.normalize(x[name], dim=-1) for name in ("q", "k")}
    return x | unit | {"g": -x["g"].abs(), "beta": x["beta"].sigmoid()}


def gated(**sizes: int) -> dict[str, Any]:
    x = drawn(**sizes)
    return x | {"A_log": torch.randn(HV) / 2, "dt_bias": torch.randn(HV * K)}


def v_first(x: dict[str, Any]) -> dict[str, Any]:
    return x | {"initial_state": x["initial_state"].transpose(-1, -2).contiguous()}


def packed() -> dict[str, Any]:
    return v_first(gated(tokens=CU_SEQLENS[-1], states=3)) | {"cu_seqlens": torch.tensor(CU_SEQLENS)}


POOL = {"initial_state": torch.arange(5 * HV * K * V).view(5, HV, K, V).sin()}
INDICES = {"ssm_state_indices": torch.tensor([3, 0, 4], dtype=torch.int32)}
CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "chunk": ("chunk_kda", plain(20), {**SAFE, "scale": 0.3}),
    "chunk, any gate": ("chunk_kda", plain(5), {}),
    "chunk, all in the kernel": ("chunk_kda", gated(tokens=20), {**SAFE, **RAW, "lower_bound": -4}),
    "chunk, softplus": ("chunk_kda", gated(tokens=5), RAW),
    "chunk, packed": (
        "chunk_kda",
        packed(),
        {**SAFE, **RAW, "lower_bound": -5.0, "allow_neg_eigval": True, "state_v_first": True},
    ),
    "recurrent": ("fused_recurrent_kda", plain(5), {"output_final_state": True}),
    "recurrent, packed": (
        "fused_recurrent_kda",
        packed(),
        {**RAW, "output_final_state": True, "allow_neg_eigval": True, "state_v_first": True},
    ),
    "decode": (
        "fused_recurrent_kda_fwd",
        gated(tokens=1, batch=3) | POOL | INDICES,
        {**RAW, "inplace_final_state": True, "lower_bound": -5.0},
    ),
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """FLA's results by call, from a process of its own: Triton is interpreted from its import on or not at all."""
    if find_spec("fla") is None or find_spec("triton") is None:
        pytest.skip("flash-linear-attention is not installed")
    calls, results = (tmp_path_factory.mktemp("fla") / name for name in ("calls", "results"))
    torch.save(list(CALLS.values()), calls)
    alone = os.environ | {"TRITON_INTERPRET": "1", "FLA_DISABLE_BACKEND_DISPATCH": "1"}
    subprocess.run([sys.executable, SCRIPT, calls, results], env=alone, check=True, timeout=600)
    return dict(zip(CALLS, torch.load(results), strict=True))


@pytest.mark.parametrize("call", CALLS)
def test_outputs_states_and_gradients_are_those_of_flas_own_kernels(call: str, theirs: dict[str, Any]) -> None:
    name, tensors, options = CALLS[call]
    ours = {function.__name__: function for function in (chunk_kda, fused_recurrent_kda)}
    ours["fused_recurrent_kda_fwd"] = torch.ops.tuner.kda
    result = run(ours[name], tensors, options)
    assert {output: error(result[output], right) for output, right in theirs[call].items()} == dict.fromkeys(
        result, pytest.approx(0, abs=1e-5)
    )


@pytest.mark.parametrize("ours", [chunk_kda, fused_recurrent_kda])
def test_arguments_have_flas_names_order_and_defaults(ours: Any) -> None:
    fla = pytest.importorskip("fla.ops.kda")
    assert positional(ours) == positional(getattr(fla, ours.__name__))


def positional(function: Any) -> list[tuple[str, Any]]:
    each = signature(function).parameters.values()
    return [(one.name, one.default) for one in each if one.kind is one.POSITIONAL_OR_KEYWORD]


def error(found: Any, right: Any) -> float:
    """RMSE ratio."""
    assert (found.shape, found.dtype) == (right.shape, right.dtype)
    return float((found - right).double().square().mean().sqrt() / right.double().square().mean().sqrt())


def test_parameters_of_the_gate_have_any_shape_and_gradients_of_it() -> None:
    x = gated()
    expected, _ = chunk_kda(**x, **RAW)
    shaped = x | {"A_log": x["A_log"].view(1, 1, HV, 1), "dt_bias": x["dt_bias"].view(HV, K)}
    learned = {name: tensor.clone().requires_grad_() for name, tensor in shaped.items()}
    o, _ = chunk_kda(**learned, **RAW)
    o.sum().backward()
    assert torch.equal(o, expected)
    assert learned["A_log"].grad.shape == (1, 1, HV, 1)


def test_the_recurrent_function_takes_rows_and_states_of_different_dtypes() -> None:
    x = {name: tensor.bfloat16() for name, tensor in gated().items()}
    exact = {name: x[name].float() for name in ("q", "k", "v", "initial_state")}
    expected, state = fused_recurrent_kda(**x | exact, output_final_state=True, **RAW)
    o, same = fused_recurrent_kda(**x | {"q": exact["q"]}, output_final_state=True, **RAW)
    assert o.dtype == torch.bfloat16
    assert torch.equal(o, expected.bfloat16())
    assert torch.equal(same, state)


def test_a_final_state_may_be_declined_by_none() -> None:
    assert chunk_kda(**gated(), output_final_state=None, **RAW)[1] is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"safe_gate": True}, "pass a lower_bound"),
        ({"state_v_first": True, "transpose_state_layout": False}, "the old name of state_v_first"),
        ({"allow_neg_eigval": True, "use_beta_sigmoid_in_kernel": False}, "set use_beta_sigmoid_in_kernel"),
    ],
)
def test_what_fla_refuses_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        chunk_kda(**gated(), **RAW | wrong)


def test_what_is_untuned_is_told_where_the_application_calls() -> None:
    dispatcher.reload()  # what was told is forgotten
    x = plain(7)
    with pytest.warns(UntunedWarning) as caught:
        o, _ = chunk_kda(*(x[name].requires_grad_() for name in ("q", "k", "v", "g", "beta")))
        o.sum().backward()
    assert len(caught) == 2 and all(warning.filename == __file__ for warning in caught)


def recurrence(x: dict[str, Any]) -> tuple[Any, Any]:
    """o and the final state of the recurrence, token by token in float64."""
    q, k, v, g, beta, state = (x[name].double() for name in ("q", "k", "v", "g", "beta", "initial_state"))
    o = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, :, None].exp()
        error = (v[:, t] - (state * k[:, t, :, :, None]).sum(-2)) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * error[..., None, :]
        o.append((state * q[:, t, :, :, None]).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(o, 1), state


def alike(tokens: int, dtype: Any) -> dict[str, Any]:
    """Keys that nearly agree and gates that forget little, as trained models have them."""
    torch.manual_seed(0)
    base, noise = torch.randn(1, 1, 2, 64), torch.randn(1, tokens, 2, 64)
    rows = {
        "q": torch.nn.functional.normalize(torch.randn(1, tokens, 2, 64), dim=-1),
        "k": torch.nn.functional.normalize(base + 0.3 * noise, dim=-1),
        "v": torch.randn(1, tokens, 2, 64),
        "g": -0.01 * torch.rand(1, tokens, 2, 64),
        "beta": torch.rand(1, tokens, 2),
    }
    return {name: row.to(dtype) for name, row in rows.items()} | {"initial_state": torch.randn(1, 2, 64, 64)}


def ratio(found: Any, right: Any) -> float:
    return float((found.double() - right).square().mean().sqrt() / right.square().mean().sqrt())


@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_the_recurrent_function_keeps_states_of_fp32(tokens: int) -> None:
    x = alike(tokens, torch.bfloat16)
    o, state = fused_recurrent_kda(**x, output_final_state=True)
    exact, right = recurrence(x)
    assert ratio(state, right) < 1e-5
    assert ratio(o, exact) < 1.02 * ratio(exact.bfloat16(), exact), "its only rounding is that of o"


@pytest.mark.parametrize("tokens", [1, 16, 100])
def test_fp16_is_as_good_as_its_mantissa(tokens: int) -> None:
    x = alike(tokens, torch.float16)
    o, state = chunk_kda(**x, output_final_state=True)
    exact, right = recurrence(x)
    assert max(ratio(o, exact), ratio(state, right)) < 2**-11
