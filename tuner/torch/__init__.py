"""Every operator as `torch.ops.tuner.<operator>`, which `torch.compile` and `torch.export` keep as one node.

    import tuner.torch
    o, lse = torch.ops.tuner.flash_attention(q, k, v, causal=True)

Plain eager code needs no more than `tuner.dispatcher`. Operators that declare a `gradient` are differentiable:
flash_attention and streaming_attention through o and lse, kda and linear_attention through o and the final state. The
others refuse tensors that require grad. Gradients are of the first order and in reverse mode, by torch.func's grad, vjp
and vmap too; forward mode is refused. `scaled_dot_product_attention`, and within `sdpa()` torch's own, takes what
torch's takes. `chunk_kda`, `fused_recurrent_kda`, `chunk_gated_delta_rule`, `fused_recurrent_gated_delta_rule` and
`chunk_delta_rule` take what flash-linear-attention's functions of these names take, `flash_attn_func`,
`flash_attn_varlen_func` and `flash_attn_with_kvcache` what flash-attn's, vLLM's and SGLang's take, and
`get_mla_metadata` and `flash_mla_with_kvcache` what FlashMLA's take.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("tuner.torch needs PyTorch: pip install torch", name="torch") from error

from tuner.torch import backend
from tuner.torch.attention import FallbackWarning, scaled_dot_product_attention, sdpa
from tuner.torch.delta import chunk_delta_rule, chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from tuner.torch.fla import chunk_kda, fused_recurrent_kda
from tuner.torch.flash import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from tuner.torch.kvcache import flash_attn_with_kvcache
from tuner.torch.mla import flash_mla_with_kvcache, get_mla_metadata
from tuner.torch.op_registration import register, register_sharding
from tuner.torch.op_schema import schema

__all__ = [
    "FallbackWarning",
    "chunk_delta_rule",
    "chunk_gated_delta_rule",
    "chunk_kda",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "flash_mla_with_kvcache",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "get_mla_metadata",
    "register_sharding",
    "scaled_dot_product_attention",
    "schema",
    "sdpa",
]

register()
backend.register()
