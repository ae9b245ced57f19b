"""Names under which transformers finds this attention, its masks and its kernels."""

import warnings
from typing import Any

import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations import hub_kernels

import tuner.torch
from tuner.torch import FallbackWarning
from tuner.transformers.attention import attend
from tuner.transformers.masks import sequences

NAME = "kerntune_flash"  # with "flash" in it transformers keeps the padding of static caches, and batches continuously

# Models that list the kernels whose sinks they trust, and take another kernel in place of one that is not listed.
_WITH_SINKS = (
    *("GptOssPreTrainedModel", "GraniteSWAPreTrainedModel", "GraniteMoeSWAPreTrainedModel"),
    "MiMoV2FlashPreTrainedModel",
)


def register() -> str:
    """Makes `attn_implementation="kerntune_flash"` known, and returns this name. A second call changes nothing."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sequences)
    _name_a_kernel()
    _serve_sam()
    for model in _WITH_SINKS:
        listed = getattr(getattr(transformers, model, None), "_compatible_flash_implementations", None)
        if listed is not None and NAME not in listed:
            listed.append(NAME)
    return NAME


def _serve_sam() -> None:
    """SAM takes the attention of its image encoder from a table of classes by this name. They add biases to the scores,
    so torch computes it; the attention of its mask decoder is called by name."""
    from transformers.models.sam import modeling_sam

    classes = modeling_sam.SAM_VISION_ATTENTION_CLASSES

    def of_torch(config: Any, window_size: int) -> Any:
        warnings.warn(
            "the attention of SAM's image encoder adds biases to the scores: torch computes it, "
            f"{NAME} that of the mask decoder",
            FallbackWarning,
            stacklevel=2,
        )
        return classes["sdpa"](config, window_size)

    classes.setdefault(NAME, of_torch)


def _name_a_kernel() -> None:
    """transformers looks a name with "flash" in it up among kernels, by a function that knows names of a hub only."""
    loads = hub_kernels.load_and_register_attn_kernel
    if getattr(loads, "knows", None) == NAME:
        return

    def load(attn_implementation: str, *args: Any, **named: Any) -> Any:
        return tuner.torch if attn_implementation == NAME else loads(attn_implementation, *args, **named)

    load.knows = NAME  # type: ignore[attr-defined]
    hub_kernels.load_and_register_attn_kernel = load
