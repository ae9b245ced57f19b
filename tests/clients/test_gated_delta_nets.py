"""Qwen3-Next of transformers, unmodified: its gated delta rule is flash-linear-attention's, which our kernels serve in
training and prefill, and its attention is ours by name."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("fla", reason="pip install fla-core")

from transformers.models.qwen3_next import modeling_qwen3_next as modeling  # noqa: E402

import tuner.transformers  # noqa: E402
from tuner.torch import fla  # noqa: E402


def made() -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        mlp_only_layers=[0, 1],
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        attn_implementation="eager",
    )
    return transformers.Qwen3NextForCausalLM(config)


def trained(model: Any, tokens: Any) -> tuple[Any, dict[str, Any]]:
    model.train().zero_grad()
    outputs = model(tokens, labels=tokens)
    outputs.loss.backward()
    return outputs.logits.detach(), {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def test_logits_and_gradients_are_those_of_the_models_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    fla.register()
    model, tokens = made(), torch.randint(1, 64, (2, 21))
    with monkeypatch.context() as by_torch:
        own = modeling.torch_chunk_gated_delta_rule.__wrapped__
        by_torch.setattr(modeling, "torch_chunk_gated_delta_rule", own)
        expected, gradients = trained(model, tokens)
    model.set_attn_implementation(tuner.transformers.register())
    logits, ours = trained(model, tokens)
    assert not torch.equal(logits, expected), "other kernels round elsewhere: the model's own code ran twice"
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=1e-5)
