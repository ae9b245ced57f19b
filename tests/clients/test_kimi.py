"""Kimi Linear of transformers, unmodified: its KDA is flash-linear-attention's, which our kernels serve, and its
attention is ours by name."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("fla", reason="pip install fla-core")

from transformers.models.kimi_linear import modeling_kimi_linear as modeling  # noqa: E402

import tuner.transformers  # noqa: E402
from tuner.torch import fla  # noqa: E402

BY_FLA = ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")  # where the model asks for FLA's functions


@pytest.fixture(scope="module")
def model() -> Any:
    fla.register()
    torch.manual_seed(0)
    config = transformers.KimiLinearConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        mlp_layer_types=["dense", "dense", "dense"],
        linear_num_heads=2,
        linear_head_dim=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        attn_implementation="eager",
    )
    return transformers.KimiLinearForCausalLM(config)


@pytest.fixture
def by_torch(model: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The model computes KDA by its own PyTorch code, as it does where FLA is not installed."""
    model.set_attn_implementation("eager")
    for name in BY_FLA:
        monkeypatch.setattr(modeling, name, getattr(modeling, name).__wrapped__)
    yield monkeypatch


def on_kernels(model: Any, by_torch: pytest.MonkeyPatch) -> Any:
    by_torch.undo()
    model.set_attn_implementation(tuner.transformers.register())
    return model


def trained(model: Any, tokens: Any, mask: Any) -> tuple[Any, list[Any]]:
    """Logits where tokens are, and gradients of all parameters."""
    model.train().zero_grad()
    meaningless = (mask == 0) | (mask.roll(1, 1) == 0)  # at padding, or told by what stands there
    result = model(tokens, attention_mask=mask, labels=tokens.masked_fill(meaningless, -100))
    result.loss.backward()
    return result.logits[mask.bool()].detach(), [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


def mask_of(padding: str) -> Any:
    mask = torch.ones(2, 21, dtype=torch.int64)
    if padding != "no":
        mask[1, slice(0, 5) if padding == "left" else slice(-5, None)] = 0
    return mask


@pytest.mark.parametrize("padding", ["no", "left", "right"])
def test_logits_and_gradients_are_those_of_the_models_own_code(
    model: Any, by_torch: pytest.MonkeyPatch, padding: str
) -> None:
    tokens = torch.randint(1, 64, (2, 21), generator=torch.Generator().manual_seed(1))
    expected, gradients = trained(model, tokens, mask_of(padding))
    logits, ours = trained(on_kernels(model, by_torch), tokens, mask_of(padding))
    assert not torch.equal(logits, expected), "other kernels round elsewhere: the model's own code ran twice"
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    for result, right in zip(ours, gradients, strict=True):
        torch.testing.assert_close(result, right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["no", "left", "right"])
def test_tokens_are_those_of_the_models_own_code(
    model: Any, by_torch: pytest.MonkeyPatch, padding: str, cache: str
) -> None:
    tokens = torch.randint(1, 64, (2, 21), generator=torch.Generator().manual_seed(2))
    asked = {"attention_mask": mask_of(padding), "max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    expected = model.eval().generate(tokens, **asked)
    assert torch.equal(on_kernels(model, by_torch).eval().generate(tokens, **asked), expected)
