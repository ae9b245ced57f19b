"""Attention with the signature of xFormers: `from tuner.xformers import memory_efficient_attention`.

`tuner.torch.xformers` describes the function.
"""

from tuner.torch.xformers import memory_efficient_attention

__all__ = ["memory_efficient_attention"]
