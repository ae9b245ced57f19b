"""Tests of Hugging Face transformers' model families, compared with `eager`: training, generation, padding."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tuner.transformers  # noqa: E402
from tuner.errors import UsageError  # noqa: E402
from tuner.torch import FallbackWarning  # noqa: E402

NAME = tuner.transformers.register()
SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = SIZES | {"head_dim": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED),
    "qwen2": ("Qwen2", SIZES | {"hidden_size": 64}),
    "qwen3": ("Qwen3", GROUPED),
    "phi": ("Phi", SIZES | {"hidden_size": 64, "num_key_value_heads": 4}),
    "phi3": ("Phi3", SIZES | {"hidden_size": 96, "sliding_window": None}),
    "gemma2": ("Gemma2", GROUPED | {"sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3", GROUPED | {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}),
    "mistral": ("Mistral", GROUPED | {"sliding_window": 5}),
    "gpt_oss": ("GptOss", GROUPED | {"sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1}),
}
PADDING = {"none": (0, 0), "left": (1, 4), "right": (1, -4)}  # row, how much and on which side


def models(family: str) -> tuple[Any, Any]:
    """The same weights twice: eager, and on these kernels."""
    name, sizes = FAMILIES[family]
    text = "TextConfig" if family == "gemma3" else "Config"
    config, kind = getattr(transformers, f"{name}{text}"), getattr(transformers, f"{name}ForCausalLM")
    made = []
    for implementation in ("eager", NAME):
        torch.manual_seed(0)
        model = kind._from_config(config(**sizes), attn_implementation=implementation).float()
        torch.manual_seed(1)
        for weights in model.parameters():
            torch.nn.init.normal_(weights, std=0.15)
        made.append(model)
    assert made[1].config._attn_implementation == NAME
    return tuple(made)


def batch(padding: str, length: int = 11) -> dict[str, Any]:
    torch.manual_seed(2)
    ids, there = torch.randint(1, 61, (2, length)), torch.ones(2, length, dtype=torch.long)
    row, count = PADDING[padding]
    if count:
        there[row, slice(None, count) if count > 0 else slice(count, None)] = 0
    return {"input_ids": ids * there, "attention_mask": there}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("family", FAMILIES)
def test_training_is_eagers(family: str, padding: str) -> None:
    eager, ours = models(family)
    given = batch(padding)
    real = given["attention_mask"].bool()
    before = torch.nn.functional.pad(real, (1, -1), value=False)  # a first token is predicted by padding: of no meaning
    labels = given["input_ids"].masked_fill(~(real & before), -100)
    expected, result = (model.train()(**given, labels=labels, use_cache=False) for model in (eager, ours))
    assert (result.logits - expected.logits)[real].abs().max() <= 1e-5
    expected.loss.backward()
    result.loss.backward()
    for (name, one), other in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if one.grad is not None:
            assert (one.grad - other.grad).abs().max() <= 1e-5, name


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_is_eagers(family: str, padding: str, cache: str) -> None:
    given = batch(padding)
    options = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    expected, result = (
        model.eval().generate(**given, **options, cache_implementation=cache) for model in models(family)
    )
    assert torch.equal(result.sequences, expected.sequences)
    assert all((a - b).abs().max() <= 1e-5 for a, b in zip(result.logits, expected.logits, strict=True))


def test_sequences_that_are_packed_do_not_see_each_other() -> None:
    eager, ours = (model.eval() for model in models("llama"))
    ids = batch("none")["input_ids"][:1]
    alone = torch.cat([eager(part).logits for part in ids.split([4, 7], dim=1)], dim=1)
    positions = torch.tensor([[*range(4), *range(7)]])
    bounds = torch.tensor([0, 4, 11], dtype=torch.int32)
    given = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 7, "max_length_k": 7}
    for cache, named in ((False, {}), (False, given), (True, given)):
        result = ours(ids, position_ids=positions, use_cache=cache, **named).logits
        assert (result - alone).abs().max() <= 1e-5
    with pytest.raises(UsageError, match="position_ids begin again"):  # with a cache the model makes one sequence of it
        ours(ids, position_ids=positions, use_cache=True)
    with pytest.raises(UsageError, match="max_length_k is missing"):
        ours(ids, position_ids=positions, **{**given, "max_length_k": None})


def test_a_model_compiled_whole_sees_what_it_was_not_told_of() -> None:
    eager, ours = (model.eval() for model in models("llama"))
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    ids = batch("none")["input_ids"]
    for rows in (ids, ids[:1]):
        result, expected = (model(rows, use_cache=False).logits for model in (compiled, eager))
        assert (result - expected).abs().max() <= 1e-5
    positions = torch.tensor([[*range(4), *range(7)]] * 2)
    with pytest.raises(RuntimeError, match="position_ids that begin again"):
        compiled(ids, position_ids=positions, use_cache=False)
    bounds = torch.tensor([0, 4, 11, 15, 22], dtype=torch.int32)
    given = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 7, "max_length_k": 7}
    result = compiled(ids, position_ids=positions, use_cache=False, **given).logits
    assert (result - eager(ids, position_ids=positions, use_cache=False).logits).abs().max() <= 1e-5


def test_several_rows_may_be_packed_and_padding_may_stand_between_tokens() -> None:
    eager, ours = (model.eval() for model in models("llama"))
    ids = batch("none")["input_ids"]
    positions = torch.tensor([[*range(4), *range(7)], [*range(9), *range(2)]])
    result, expected = (model(ids, position_ids=positions, use_cache=False).logits for model in (ours, eager))
    assert (result - expected).abs().max() <= 1e-5
    there = torch.ones_like(ids).index_fill(1, torch.tensor([3, 4]), 0)
    result, expected = (model(ids, attention_mask=there).logits[there.bool()] for model in (ours, eager))
    assert (result - expected).abs().max() <= 1e-5


def test_a_cache_is_continued_with_several_tokens() -> None:
    eager, ours = (model.eval() for model in models("llama"))
    given = batch("left")
    results = []
    for model in (eager, ours):
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        for part in (slice(0, 6), slice(6, 9), slice(9, 11)):
            there = given["attention_mask"][:, : part.stop]
            positions = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)[:, part]
            result = model(
                given["input_ids"][:, part], attention_mask=there, position_ids=positions, past_key_values=cache
            )
        results.append(result.logits)
    assert (results[0] - results[1]).abs().max() <= 1e-5


def test_requests_are_batched_continuously() -> None:
    eager, ours = models("llama")
    prompts = [ids.tolist() for ids in batch("none")["input_ids"][0].split([3, 8])]
    config = transformers.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0)
    actual = ours.eval().generate_batch(prompts, generation_config=config, progress_bar=False)
    for prompt, result in zip(prompts, actual.values(), strict=True):
        expected = eager.eval().generate(torch.tensor([prompt]), generation_config=config)
        assert result.generated_tokens == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("padding", PADDING)
def test_an_encoder_s_queries_see_every_token(padding: str) -> None:
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    results = []
    for implementation in ("eager", NAME):
        torch.manual_seed(0)
        model = transformers.BertModel._from_config(config, attn_implementation=implementation).eval()
        results.append(model(**batch(padding)).last_hidden_state)
    assert (results[0] - results[1]).abs().max() <= 1e-5


def test_a_decoder_without_causality_is_one() -> None:
    _, sizes = FAMILIES["llama"]
    config = transformers.LlamaConfig(**sizes, is_causal=False)
    results = []
    for implementation in ("eager", NAME):
        torch.manual_seed(0)
        model = transformers.LlamaModel._from_config(config, attn_implementation=implementation).eval()
        results.append(model(**batch("none"), use_cache=False).last_hidden_state)
    assert (results[0] - results[1]).abs().max() <= 1e-5


def test_what_is_not_served_is_named() -> None:
    _, ours = models("llama")
    whole = torch.zeros(2, 1, 11, 11).masked_fill(torch.ones(11, 11).triu(1).bool(), -torch.inf)
    with pytest.raises(UsageError, match=r"attention_mask \[2, 1, 11, 11\] of torch.float32 is not supported"):
        ours(batch("none")["input_ids"], attention_mask=whole)
    with pytest.raises(UsageError, match="attention with position_bias is not supported"):
        ours(**batch("none"), position_bias=torch.zeros(1))
    with pytest.raises(ValueError, match="dropout"):
        ours.config.attention_dropout = 0.5
        for layer in ours.model.layers:
            layer.self_attn.attention_dropout = 0.5
        ours.train()(**batch("none"))


def test_a_mask_of_the_model_s_own_is_refused_and_one_that_changes_nothing_is_not() -> None:
    from transformers.masking_utils import create_causal_mask

    _, ours = models("llama")
    given = {"config": ours.config, "inputs_embeds": torch.zeros(2, 11, 48), "attention_mask": None}
    prefix = lambda _batch, _head, _query, key: key < 3  # noqa: E731
    with pytest.raises(UsageError, match="a custom mask of the model is not supported"):
        create_causal_mask(**given, cache=None, or_mask_function=prefix)
    with pytest.raises(UsageError, match="a custom mask of the model is not supported"):
        blocks = torch.tensor([[-1, 0, 0, *[-1] * 8]] * 2)
        create_causal_mask(**given, cache=None, block_sequence_ids=blocks)
    past = lambda _batch, _head, query, key: key <= query  # noqa: E731
    usual, other = (create_causal_mask(**given, cache=None, **more) for more in ({}, {"and_mask_function": past}))
    assert torch.equal(usual, other)


EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GraniteSWA": ("Config", GROUPED | {"sliding_window": 5}),  # this and the next two list the kernels that they take
    "GraniteMoeSWA": ("Config", GROUPED | {"sliding_window": 5}),
    "MiMoV2Flash": ("Config", GROUPED | {"sliding_window": 5}),
    "Llama4": ("TextConfig", GROUPED | EXPERTS | {"attention_chunk_size": 16}),
    "GPTJ": ("Config", {"vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "rotary_dim": 8}),
}


@pytest.mark.parametrize("name", DECODERS)
def test_logits_of_other_decoders_are_eagers(name: str) -> None:
    suffix, sizes = DECODERS[name]
    config = getattr(transformers, f"{name}{suffix}")(**sizes)
    eager, ours = encoders(getattr(transformers, f"{name}ForCausalLM"), config)
    assert ours.config._attn_implementation == NAME
    inputs = batch("left")
    logits, expected = (model(**inputs).logits for model in (ours, eager))
    assert (logits - expected)[inputs["attention_mask"].bool()].abs().max() <= 1e-5


UNNAMED = {
    "Falcon": {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "alibi": False},
    "GPTNeo": {
        **{"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "window_size": 5},
        "attention_types": [[["global", "local"], 1]],
    },
}


@pytest.mark.parametrize("name", UNNAMED)
def test_models_that_do_not_call_their_attention_by_name_are_refused(name: str) -> None:
    config = getattr(transformers, f"{name}Config")(**UNNAMED[name])
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation=NAME)
    with pytest.raises(UsageError, match="ATTENTION_CLASSES\\), not by name: load it with"):
        model(**batch("left"))


def test_chunks_that_are_shorter_than_the_text_are_refused() -> None:
    config = transformers.Llama4TextConfig(**GROUPED, **EXPERTS, attention_chunk_size=4)
    model = transformers.Llama4ForCausalLM._from_config(config, attn_implementation=NAME)
    with pytest.raises(ValueError, match="cannot handle chunked attention"):
        model(**batch("none"))


def test_a_vision_tower_whose_hidden_states_are_selected_is_eagers() -> None:
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision, image_size=16, patch_size=4),
        text_config=transformers.LlamaConfig(**GROUPED),
        image_token_id=60,
        image_seq_length=16,
    )
    eager, ours = encoders(transformers.LlavaForConditionalGeneration, config)
    torch.manual_seed(2)
    ids = torch.cat([torch.full((1, 16), 60), torch.randint(1, 59, (1, 7))], dim=1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(1, 3, 16, 16)}
    logits, expected = (model(**inputs).logits for model in (ours, eager))
    assert (logits - expected).abs().max() <= 1e-5


def test_the_mask_decoder_of_sam_is_served_and_its_image_encoder_is_torchs() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 32}
    image = {"image_size": 32, "patch_size": 8}
    config = transformers.SamConfig(
        vision_config={**sizes, **image, "output_channels": 16, "num_pos_feats": 8, "window_size": 2},
        prompt_encoder_config={"hidden_size": 16, **image, "mask_input_channels": 4},
        mask_decoder_config={**sizes, "iou_head_hidden_dim": 16},
    )
    with pytest.warns(FallbackWarning, match="SAM's image encoder adds biases"):
        eager, ours = encoders(transformers.SamModel, config)
    torch.manual_seed(1)
    weights = {name: torch.randn_like(weight) * 0.3 for name, weight in eager.state_dict().items()}
    torch.manual_seed(2)
    inputs = {"pixel_values": torch.randn(1, 3, 32, 32), "input_points": torch.rand(1, 1, 2, 2) * 32}
    expected, masks = (
        model(**inputs).pred_masks for model in (eager, ours) if model.load_state_dict(weights, assign=True)
    )
    assert (masks - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_positions_with_a_gap_are_one_sequence() -> None:
    eager, ours = (model.eval() for model in models("llama"))
    ids, positions = batch("none")["input_ids"][:1], torch.tensor([[*range(4), *range(20, 27)]])
    given = {"attention_mask": torch.ones_like(ids), "position_ids": positions}
    result, expected = (model(ids, **given).logits for model in (ours, eager))
    assert (result - expected).abs().max() <= 1e-5


def encoders(kind: Any, config: Any) -> list[Any]:
    """The same weights twice: eager, and on these kernels."""
    made = []
    for implementation in ("eager", NAME):
        torch.manual_seed(0)
        made.append(kind._from_config(config, attn_implementation=implementation).eval())
    return made


@pytest.mark.parametrize("padding", PADDING)
def test_windows_of_both_sides_are_eagers(padding: str) -> None:
    names = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    modern = transformers.ModernBertConfig(**sizes, **names, num_hidden_layers=2, local_attention=4)
    gemma = transformers.Gemma3TextConfig(**GROUPED, sliding_window=5, use_bidirectional_attention=True)
    for kind, config in ((transformers.ModernBertModel, modern), (transformers.Gemma3TextModel, gemma)):
        given = batch(padding)
        expected, result = (model(**given).last_hidden_state for model in encoders(kind, config))
        assert (result - expected)[given["attention_mask"].bool()].abs().max() <= 1e-5


def test_an_encoder_and_its_decoder_have_their_windows() -> None:
    from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig

    part = T5GemmaModuleConfig(**GROUPED, sliding_window=4)
    config = transformers.T5GemmaConfig(encoder=part, decoder=part, vocab_size=61, dropout_rate=0.0)
    ids = batch("none")["input_ids"]
    eager, ours = encoders(transformers.T5GemmaModel, config)
    expected, result = (model(input_ids=ids, decoder_input_ids=ids).last_hidden_state for model in (eager, ours))
    assert (result - expected).abs().max() <= 1e-5


def test_a_mask_of_another_layers_cache_is_refused() -> None:
    layers = ["linear_attention", "full_attention"]
    sizes = {"num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": layers, "block_size": 4}
    config = transformers.MiniMaxConfig(**GROUPED, **sizes)
    _, ours = encoders(transformers.MiniMaxForCausalLM, config)
    with pytest.raises(UsageError, match="the model's mask"):
        ours.generate(**batch("left"), max_new_tokens=2, do_sample=False)


def test_the_loss_at_left_padding_is_that_of_sdpa() -> None:
    """Where a first token is predicted from padding, whose output is 0 here and in torch's function."""
    _, ours = models("llama")
    torch_s = type(ours)._from_config(ours.config, attn_implementation="sdpa")
    torch_s.load_state_dict(ours.state_dict())
    given = batch("left")
    labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
    expected, result = (model.eval()(**given, labels=labels).loss for model in (torch_s, ours))
    assert abs(float(result - expected)) <= 1e-5


def test_a_compiled_or_exported_model_takes_padding_of_any_size() -> None:
    eager, ours = (model.eval() for model in models("llama"))

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = ours

        def forward(self, ids: Any, there: Any) -> Any:
            return self.model(ids, attention_mask=there, use_cache=False).logits

    first = batch("left")
    sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    exported = torch.export.export(Logits(), tuple(first.values()), dynamic_shapes=(sizes, sizes)).module()
    torch._dynamo.reset()
    compiled = torch.compile(Logits(), fullgraph=True, backend="aot_eager")
    for given in (first, batch("right", length=7)):
        expected = eager(**given).logits
        for program in (exported, compiled):
            result = program(*given.values())
            assert (result - expected)[given["attention_mask"].bool()].abs().max() <= 1e-5


def test_models_with_biases_of_their_own_are_refused() -> None:
    config = transformers.T5Config(vocab_size=61, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2)
    model = transformers.T5EncoderModel._from_config(config, attn_implementation=NAME)
    with pytest.raises(UsageError, match="takes no flash attention"):
        model(**batch("left"))


def test_what_is_registered_is_told_once_and_others_names_are_looked_up_as_before() -> None:
    from transformers.integrations import hub_kernels

    before = hub_kernels.load_and_register_attn_kernel
    assert tuner.transformers.register() == NAME == "kerntune_flash"
    assert hub_kernels.load_and_register_attn_kernel is before
    assert before("no_kernel_at_all") is None
    assert transformers.AttentionInterface()[NAME] is tuner.transformers.attention.attend
