"""Tests of masks from transformers' own functions: attention equals `eager` or is refused by name."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import masking_utils  # noqa: E402

import tuner.transformers  # noqa: E402
from tuner.errors import InputError  # noqa: E402
from tuner.transformers import attention, masks  # noqa: E402
from tuner.transformers.attention import attend  # noqa: E402

NAME = tuner.transformers.register()
MAKERS = {
    "causal": masking_utils.create_causal_mask,
    "sliding": masking_utils.create_sliding_window_causal_mask,
    "chunked": masking_utils.create_chunked_causal_mask,
    "bidirectional": masking_utils.create_bidirectional_mask,
    "both_sides": masking_utils.create_bidirectional_sliding_window_mask,
}
D = 8


def config(implementation: str, window: int) -> Any:
    made = transformers.LlamaConfig(num_hidden_layers=1, hidden_size=2 * D, num_attention_heads=2)
    made.sliding_window = made.attention_chunk_size = window
    made._attn_implementation = implementation
    return made


def cache_of(past: int, batch: int) -> Any:
    cache = transformers.DynamicCache()
    if past:
        cache.update(torch.zeros(batch, 1, past, D), torch.zeros(batch, 1, past, D), 0)
    return cache


class Drawn:
    """A call of one of transformers' functions, drawn at random."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.kind = draw.choice([*MAKERS])
        self.batch, self.queries = draw.choice([1, 2, 3]), draw.choice([1, 2, 5, 9])
        encoder = self.kind in ("bidirectional", "both_sides")
        self.past = 0 if encoder else draw.choice([0, 0, 3, 6])
        self.window = draw.choice([1, 2, 3, 5, 16])
        self.padding = draw.choice(["none", "ones", "left", "right", "holes"])
        self.packed = not encoder and not self.past and self.padding == "none" and draw.random() < 0.5
        self.draw = draw

    def there(self) -> Any:
        keys = self.past + self.queries
        there = torch.ones(self.batch, keys, dtype=torch.long)
        for row in range(self.batch):
            count = self.draw.randrange(keys)
            if self.padding in ("left", "right"):
                there[row, slice(0, count) if self.padding == "left" else slice(keys - count, keys)] = 0
            if self.padding == "holes":
                there[row, self.draw.sample(range(keys), count)] = 0
        return None if self.padding == "none" else there

    def positions(self) -> Any:
        if not self.packed:
            return None
        first = self.draw.randrange(self.queries)
        return torch.tensor([[*range(first), *range(self.queries - first)]]).expand(self.batch, -1)

    def masks(self, there: Any, positions: Any) -> tuple[Any, Any]:
        """Eager's and ours."""
        named = {"inputs_embeds": torch.zeros(self.batch, self.queries, 2 * D), "attention_mask": there}
        if self.kind not in ("bidirectional", "both_sides"):
            named["position_ids"] = positions
        cache = cache_of(self.past, self.batch) if self.past else None
        made = MAKERS[self.kind]
        return tuple(made(config(attention, self.window), cache=cache, **named) for attention in ("eager", NAME))


def tensors(batch: int, queries: int, keys: int) -> tuple[Any, ...]:
    torch.manual_seed(batch * 100 + queries)
    return tuple(torch.randn(batch, heads, length, D) for heads, length in ((2, queries), (1, keys), (1, keys)))


def eager(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = q @ k.transpose(2, 3) * D**-0.5
    return ((scores if mask is None else scores + mask).softmax(-1) @ v).transpose(1, 2)


def real(there: Any, batch: int, queries: int) -> Any:
    return torch.ones(batch, queries, dtype=torch.bool) if there is None else there[:, -queries:].bool()


def module(causal: bool = True) -> Any:
    return SimpleNamespace(is_causal=causal, layer_idx=0)


def difference(drawn: Drawn) -> float:
    """Of the outputs of real queries. Raises InputError where the mask is refused."""
    there, positions = drawn.there(), drawn.positions()
    expected, ours = drawn.masks(there, positions)
    rows = tensors(drawn.batch, drawn.queries, drawn.past + drawn.queries)
    # What a model says beside its mask must not count: eager does not hear of it.
    o, _ = attend(module(drawn.draw.random() < 0.5), *rows, ours, sliding_window=drawn.draw.choice([None, 2]))
    error = (o - eager(*rows, expected)).abs()[real(there, drawn.batch, drawn.queries)]
    return float(error.max()) if error.numel() else 0.0


def test_masks_that_are_drawn_are_eagers_or_refused() -> None:
    refused = 0
    for seed in range(100):
        drawn = Drawn(seed)
        try:
            assert difference(drawn) <= 1e-5, vars(drawn)
        except (InputError, ValueError) as error:
            refused += 1
            assert "not supported" in str(error) or "chunk" in str(error), vars(drawn)
    assert refused <= 35


SHAPES = {"batch": 2, "queries": 9, "past": 0, "padding": "none", "packed": False}


def drawn_as(**fields: Any) -> Drawn:
    made = Drawn(0)
    vars(made).update(SHAPES | fields)
    return made


CHECKS = [
    ("_agrees_on_samples", lambda *_: torch.tensor(True), {"kind": "chunked", "window": 3}),
    ("_agrees", lambda *_: torch.tensor(True), {"kind": "sliding", "window": 3, "blocks": True}),
    ("assure", lambda *_: None, {"kind": "sliding", "window": 2, "padding": "holes"}),
]


@pytest.mark.parametrize(("check", "passes", "fields"), CHECKS, ids=[check[0] for check in CHECKS])
def test_a_mask_is_wrong_without_the_check_that_refuses_it(
    check: str, passes: Any, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking_utils, "is_flash_attention_requested", lambda *_: False)  # it refuses long chunks too
    if fields.get("blocks"):
        blocks = torch.tensor([[-1, 0, 0, 0, *[-1] * 5]] * 2)
        maker = lambda *args, **named: masking_utils.create_sliding_window_causal_mask(  # noqa: E731
            *args, **named, block_sequence_ids=blocks
        )
        monkeypatch.setitem(MAKERS, "sliding", maker)
    with pytest.raises(InputError, match="not supported"):
        difference(drawn_as(**fields))
    monkeypatch.setattr(masks, check, passes)
    assert difference(drawn_as(**fields)) > 1e-2


def test_padding_beside_bounds_is_wrong_without_the_check_that_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    call = drawn_as(kind="causal", padding="left")
    there = call.there()
    expected, ours = call.masks(there, None)
    rows, bounds = tensors(2, 9, 9), torch.tensor([0, 9, 18], dtype=torch.int32)
    packed = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 9, "max_length_k": 9}
    with pytest.raises(InputError, match="padding beside cu_seq_lens_q is not supported"):
        attend(module(), *rows, ours, **packed)
    monkeypatch.setattr(attention, "_refuse_padding", lambda _: None)
    o, _ = attend(module(), *rows, ours, **packed)
    assert (o - eager(*rows, expected))[real(there, 2, 9)].abs().max() > 1e-2


def test_a_window_of_queries_at_the_first_keys_is_wrong_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels align windows at the last key; this mask's queries stand at the first keys of more."""
    near = masking_utils.sliding_window_bidirectional_mask_function(1)
    given = {"mask_function": near, "local_size": 1, "allow_is_bidirectional_skip": False}
    with pytest.raises(InputError, match="queries that have no key of their own are not supported"):
        masks.sequences(2, 3, 6, **given)
    monkeypatch.setattr(masks, "_refuse_unaligned", lambda *_, **__: None)
    rows = tensors(2, 3, 6)
    o, _ = attend(module(causal=False), *rows, masks.sequences(2, 3, 6, **given))
    visible = masking_utils.sdpa_mask(2, 3, 6, mask_function=near, allow_is_causal_skip=False)
    bias = torch.zeros(2, 1, 3, 6).masked_fill(~visible, -torch.inf)
    assert (o - eager(*rows, bias)).abs().max() > 1e-2


def test_a_mask_of_other_keys_is_refused() -> None:
    _, ours = drawn_as(kind="causal", queries=1, past=6).masks(None, None)
    with pytest.raises(InputError, match="attention has 1 queries and 9 keys, and the model's mask 8 of both"):
        attend(module(), *tensors(2, 1, 9), ours)


def test_a_mask_without_its_attribute_says_the_same() -> None:
    """As where a model moves its mask to another device."""
    for seed in range(20):
        drawn = Drawn(seed)
        try:
            _, ours = drawn.masks(drawn.there(), drawn.positions())
        except (InputError, ValueError):
            continue
        pattern = masks.read(ours, drawn.queries, drawn.past + drawn.queries).pattern
        assert masks.read(ours.clone(), drawn.queries, drawn.past + drawn.queries).pattern == pattern


def test_a_window_without_a_mask_is_refused() -> None:
    with pytest.raises(InputError, match="sliding_window without attention_mask"):
        attend(module(), *tensors(1, 9, 9), None, sliding_window=3)


@pytest.mark.parametrize("kind", ["causal", "sliding", "bidirectional", "both_sides"])
def test_masks_are_made_and_read_inside_of_a_graph(kind: str) -> None:
    """Sizes are dynamic, and padding on either side is read without a wait for the device."""

    settings, layer = config(NAME, 3), module()

    def step(q: Any, k: Any, v: Any, there: Any) -> Any:
        embeds = q.transpose(1, 2).flatten(2)
        mask = MAKERS[kind](settings, inputs_embeds=embeds, attention_mask=there, cache=None)
        return attend(layer, q, k, v, mask)[0]

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, padding in ((9, "left"), (7, "right"), (6, "ones")):
        drawn = drawn_as(kind=kind, queries=queries, padding=padding, window=3)
        there, rows = drawn.there(), tensors(2, queries, queries)
        rows = tuple(x.requires_grad_() for x in rows)
        expected, _ = drawn.masks(there, None)
        chosen = real(there, 2, queries)
        results = [
            (o[chosen], *torch.autograd.grad((o[chosen] ** 2).sum(), rows))
            for o in (compiled(*rows, there), eager(*rows, expected))
        ]
        for ours, other in zip(*results, strict=True):
            assert (ours - other).abs().max() <= 1e-5
