"""Models of transformers with the gated delta rule, unmodified: their delta rule is flash-linear-attention's, which our
kernels serve in training, of prompts and in decoding, and their attention is ours by name."""

from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("fla", reason="pip install fla-core")

import tuner.transformers  # noqa: E402
from tuner.torch import fla  # noqa: E402

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": None,
    "attn_implementation": "eager",
}
EXPERTS = {
    **{"mlp_only_layers": [0, 1], "num_experts": 2, "num_experts_per_tok": 1},
    **{"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {**SIZES, **EXPERTS, "head_dim": 16}),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {**SIZES, "head_dim": 16}),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", {**SIZES, "linear_num_key_heads": 2}),
}
OF_TORCH = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def made(name: str) -> Any:
    config, model, sizes = MODELS[name]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**sizes))


def by_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own code in place of FLA's functions."""
    modeling = import_module(f"transformers.models.{name}.modeling_{name}")
    for function in OF_TORCH:
        monkeypatch.setattr(modeling, function, getattr(modeling, function).__wrapped__)


def trained(model: Any, tokens: Any) -> tuple[Any, dict[str, Any]]:
    model.train().zero_grad()
    outputs = model(tokens, labels=tokens)
    outputs.loss.backward()
    return outputs.logits.detach(), {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_the_models_own_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fla.register()
    model, tokens = made(name), torch.randint(1, 64, (2, 21))
    with monkeypatch.context() as patched:
        by_torch(name, patched)
        expected, gradients = trained(model, tokens)
    model.set_attn_implementation(tuner.transformers.register())
    logits, ours = trained(model, tokens)
    assert not torch.equal(logits, expected), "other kernels round elsewhere: the model's own code ran twice"
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(ours[parameter], gradient, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_the_models_own_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt is read by chunks, and each further token by the recurrence: neither by FLA's own kernels."""
    fla.register()
    model, tokens = made(name).eval(), torch.randint(1, 64, (2, 9))
    options = {"max_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with monkeypatch.context() as patched:
        by_torch(name, patched)
        expected = model.generate(tokens, **options)
    model.set_attn_implementation(tuner.transformers.register())
    calls: list[int] = []
    with monkeypatch.context() as counted:
        serve = fla._kda
        counted.setattr(fla, "_kda", lambda *args: calls.append(args[0][0].shape[1]) or serve(*args))
        served = model.generate(tokens, **options)
    assert calls == [9, 1, 1]
    assert torch.equal(served.sequences, expected.sequences)
    for logits, other in zip(served.logits, expected.logits, strict=True):
        torch.testing.assert_close(logits, other, rtol=0, atol=1e-5)
