"""Tests of modules of other packages inside `sdpa()`: results and gradients equal those without it."""

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch.test_attention import calls_of  # noqa: E402
from tuner.torch import FallbackWarning  # noqa: E402


def agrees(module: Any, *given: Any, calls: int, **named: Any) -> None:
    expected = module(*given, **named)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        actual, count = calls_of(lambda: module(*given, **named))
    assert count == calls
    assert (actual - expected).abs().max() <= 1e-5
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    results = (torch.autograd.grad(result.square().sum(), weights, allow_unused=True) for result in (actual, expected))
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one - other).abs().max() <= 1e-4 * max(1.0, float(other.abs().max()))


def test_a_vision_transformer_of_timm() -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 72, "depth": 2, "num_heads": 1, "num_classes": 5}
    model = timm.models.VisionTransformer(**sizes).eval()
    agrees(model, torch.randn(2, 3, 32, 32), calls=2)


@pytest.mark.parametrize("padded", [False, True])
def test_a_transformer_block_of_diffusers(padded: bool) -> None:
    attention = pytest.importorskip("diffusers.models.attention")
    torch.manual_seed(0)
    block = attention.BasicTransformerBlock(32, 2, 16, cross_attention_dim=24).eval()
    x, text = torch.randn(2, 9, 32), torch.randn(2, 5, 24)
    there = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    mask = ((1 - there) * -torch.inf).nan_to_num(0.0, neginf=-torch.inf)[:, None] if padded else None
    agrees(block, x, encoder_hidden_states=text, encoder_attention_mask=mask, calls=2)


@pytest.mark.parametrize("padded", [False, True])
def test_torch_s_encoder_layer(padded: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    padding = torch.arange(7).expand(2, 7) >= torch.tensor([[7], [4]]) if padded else None
    agrees(layer, torch.randn(2, 7, 32), src_key_padding_mask=padding, calls=1)
