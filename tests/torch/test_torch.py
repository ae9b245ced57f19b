"""Tests of the torch operators; on the CPU they run on the emulator."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tuner import dispatcher  # noqa: E402
from tuner.errors import InputError  # noqa: E402
from tuner.operators import load  # noqa: E402
from tuner.torch import schema  # noqa: E402


def qkv(heads: int = 2, kv_heads: int = 2) -> tuple[Any, Any, Any]:
    return tuple(torch.randn(1, n, 7, 16).bfloat16() for n in (heads, kv_heads, kv_heads))  # type: ignore[return-value]


def test_the_schema_is_the_operators_signature() -> None:
    tensors = "Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None"
    tensors += ", Tensor? s_aux=None"
    options = "bool causal=False, float? softmax_scale=None, float softcap=0.0, SymInt? max_seqlen_q=None"
    options += ", int window_left=-1, int window_right=-1"
    options += ', str precision="dtype", str layout="bthd"'
    assert schema(load("flash_attention")) == f"flash_attention({tensors}, *, {options}) -> (Tensor, Tensor)"


@pytest.mark.parametrize("causal", [False, True])
def test_it_agrees_with_torchs_own_attention(causal: bool) -> None:
    q, k, v = qkv(4, 2)
    o, lse = torch.ops.tuner.flash_attention(q, k, v, causal=causal, layout="bhtd")
    given = [tensor.double() for tensor in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=True)
    assert torch.allclose(o.double(), expected, atol=2e-2)
    assert lse.shape == (1, 4, 7)


def test_torch_finds_its_rules_kept() -> None:
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    operator = torch.ops.tuner.flash_attention.default
    result = torch.library.opcheck(operator, qkv(), {"layout": "bhtd"}, test_utils=checks)
    assert set(result.values()) == {"SUCCESS"}


def test_it_is_one_node_of_a_compiled_graph() -> None:
    def block(q: Any, k: Any, v: Any) -> Any:
        return torch.ops.tuner.flash_attention(q, k, v)[0] * 2

    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    given = qkv()
    assert torch.equal(compiled(*given), block(*given))


@pytest.mark.parametrize("wanted", [False, True])
def test_the_shapes_of_outputs_that_depend_on_an_option_are_known_without_memory(wanted: bool) -> None:
    q, k, v, g = (torch.empty(2, 37, 4, 32, dtype=torch.bfloat16, device="meta") for _ in range(4))
    o, state = torch.ops.tuner.kda(q, k, v, g, g[..., 0], output_final_state=wanted)
    assert (o.shape, o.dtype) == ((2, 37, 4, 32), torch.bfloat16)
    assert (state.shape, state.dtype) == ((2 * wanted, 4, 32, 32), torch.float32)


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradients_agree_with_torchs_own(causal: bool) -> None:
    given = [tensor.requires_grad_() for tensor in qkv(4, 2)]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    weights = torch.randn(1, 4, 7, 16).bfloat16()
    o, _ = torch.ops.tuner.flash_attention(*given, causal=causal, layout="bhtd")
    (o * weights).sum().backward()
    expected = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=causal, enable_gqa=True)
    (expected * weights.double()).sum().backward()
    for ours, theirs in zip(given, exact, strict=True):
        assert torch.allclose(ours.grad.double(), theirs.grad, atol=5e-2)


def test_the_gradients_of_values_of_another_width_agree_with_torchs_own() -> None:
    q, k, v = qkv(4, 2)
    given = [tensor.requires_grad_() for tensor in (q, k, torch.cat([v, v.flip(-1)[..., :8]], -1))]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    weights = torch.randn(1, 4, 7, 24).bfloat16()
    (torch.ops.tuner.flash_attention(*given, causal=True, layout="bhtd")[0] * weights).sum().backward()
    expected = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
    (expected * weights.double()).sum().backward()
    for ours, theirs in zip(given, exact, strict=True):
        assert torch.allclose(ours.grad.double(), theirs.grad, atol=5e-2)


def test_a_gradient_that_repeats_one_element_is_taken() -> None:
    given = [tensor.requires_grad_() for tensor in qkv()]
    torch.ops.tuner.flash_attention(*given, layout="bhtd")[0].sum().backward()
    assert given[2].grad.shape == given[2].shape


def used(o: Any, lse: Any, parts: str) -> Any:
    """A loss of some of the outputs that weights no two elements alike."""
    outputs = [output for name, output in (("o", o), ("lse", lse)) if name in parts.split()]
    return sum((output.double() * torch.arange(output.numel()).view(output.shape).cos()).sum() for output in outputs)


@pytest.mark.parametrize("parts", ["o", "lse", "o lse"])
def test_gradients_flow_through_the_outputs_that_a_loss_uses(parts: str) -> None:
    given = [tensor.requires_grad_() for tensor in qkv()]
    q, k, v = exact = [tensor.detach().double().requires_grad_() for tensor in given]
    used(*torch.ops.tuner.flash_attention(*given, layout="bhtd"), parts).backward()
    scores = q @ k.transpose(-2, -1) / 4
    used(scores.softmax(-1) @ v, scores.logsumexp(-1), parts).backward()
    for ours, theirs in zip(given, exact, strict=True):
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert torch.allclose(ours.grad.double(), expected, atol=5e-2)


def test_a_gradient_through_lse_stays_in_a_compiled_graph() -> None:
    def step(given: list[Any]) -> Any:
        return used(*torch.ops.tuner.flash_attention(*given), "o lse")

    eager = [tensor.requires_grad_() for tensor in qkv()]
    compiled = [value.detach().clone().requires_grad_() for value in eager]
    step(eager).backward()
    torch.compile(step, backend="aot_eager", fullgraph=True)(compiled).backward()
    assert all(torch.equal(ours.grad, theirs.grad) for ours, theirs in zip(compiled, eager, strict=True))


def test_parts_of_the_keys_that_are_merged_have_the_gradients_of_the_whole() -> None:
    q, *others = (tensor.requires_grad_() for tensor in qkv())
    whole, parts = ([tensor.detach().clone().requires_grad_() for tensor in (q, *others)] for _ in range(2))
    weights = torch.randn(1, 2, 7, 16)
    (torch.ops.tuner.flash_attention(*whole, layout="bhtd")[0] * weights).sum().backward()
    results = [
        torch.ops.tuner.flash_attention(parts[0], *(part[:, :, keys].contiguous() for part in parts[1:]), layout="bhtd")
        for keys in (slice(0, 3), slice(3, 7))
    ]
    shares = torch.stack([lse for _, lse in results]).softmax(0)[..., None]
    (sum(share * o for share, (o, _) in zip(shares, results, strict=True)) * weights).sum().backward()
    for one, other in zip(whole, parts, strict=True):
        assert torch.allclose(one.grad.double(), other.grad.double(), atol=5e-2)


@pytest.mark.parametrize("beta", [0.5, 1])
def test_a_number_is_taken_where_an_operator_takes_a_number_or_an_array(beta: float) -> None:
    q, k, v = (torch.randn(1, 7, 2, 16).bfloat16() for _ in range(3))
    o, _ = torch.ops.tuner.linear_attention(q, k, v, beta)
    assert torch.equal(o, dispatcher.linear_attention(q, k, v, beta)[0])
    assert torch.ops.tuner.linear_attention(q.to("meta"), k.to("meta"), v.to("meta"), beta)[0].shape == o.shape


def test_tensors_that_require_grad_are_refused_where_there_is_no_backward() -> None:
    dout, q, k, v, o = (torch.randn(1, 7, 2, 16).bfloat16() for _ in range(5))
    with pytest.raises(InputError, match="q requires grad, and there is no backward"):
        torch.ops.tuner.flash_attention_backward(dout, q.requires_grad_(), k, v, o, torch.zeros(1, 2, 7))


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_makes_tensors_of_several_dtypes_one(compiled: bool) -> None:
    """As a norm of queries and keys leaves them: fp32, beside values of 16 bits."""
    q, k, v = qkv()
    q, k, v = q.float().requires_grad_(), k.float().requires_grad_(), v.requires_grad_()

    def block(q: Any, k: Any, v: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.ops.tuner.flash_attention(q, k, v, layout="bhtd")[0]

    o = (torch.compile(block, backend="aot_eager", fullgraph=True) if compiled else block)(q, k, v)
    o.sum().backward()
    by_hand, _ = torch.ops.tuner.flash_attention(q.bfloat16(), k.bfloat16(), v, layout="bhtd")
    assert torch.equal(o, by_hand)
    assert (q.grad.dtype, v.grad.dtype) == (torch.float32, torch.bfloat16)


def test_autocast_leaves_tensors_of_one_dtype_alone() -> None:
    given = [tensor.float() for tensor in qkv()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.ops.tuner.flash_attention(*given)[0].dtype == torch.float32


def test_what_torch_cannot_differentiate_is_refused_instead_of_wrong() -> None:
    given = qkv()

    def loss(q: Any) -> Any:
        return torch.ops.tuner.flash_attention(q, *given[1:], layout="bhtd")[0].float().sum()

    with pytest.raises(InputError, match=r"flash_attention has no derivative in forward mode: call it outside"):
        torch.func.jvp(loss, given[:1], given[:1])
    with torch.autograd.forward_ad.dual_level(), pytest.raises(InputError, match="no derivative in forward mode"):
        loss(torch.autograd.forward_ad.make_dual(given[0], given[0]))
    q = given[0].clone().requires_grad_()
    with pytest.raises(InputError, match="its gradient has none of its own: leave out create_graph=True"):
        torch.autograd.grad(loss(q), q, create_graph=True)
    assert torch.autograd.grad(loss(q), q)[0].shape == q.shape


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints_give_the_same_gradients(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def block(q: Any, k: Any, v: Any) -> Any:
        return torch.ops.tuner.flash_attention(q, k, v, causal=True, layout="bhtd")[0]

    given = [tensor.requires_grad_() for tensor in qkv()]
    checkpoint(block, *given, use_reentrant=reentrant).float().square().sum().backward()
    kept = torch.autograd.grad(block(*given).float().square().sum(), given)
    assert all(torch.equal(tensor.grad, slope) for tensor, slope in zip(given, kept, strict=True))
