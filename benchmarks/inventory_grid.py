"""The problems and GPUs on which `inventory.py` ranks implementations: common uses, and cases where designs should
differ.

A problem is its operator's default problem with other fields. Its name describes it in the table.
"""

from collections.abc import Mapping

from tuner.base.fields import Fields
from tuner.spec.dtype import DType, Precision

GPUS = ("A100", "RTX 3090", "AGX Orin", "RTX 4090", "H200", "B200", "B300", "Thor", "RTX 5090", "GB10")

_FP16, _FP32 = {"dtype": DType.FP16}, {"dtype": DType.FP32}
_TF32 = _FP32 | {"precision": Precision.TF32}
_CAUSAL = {"causal": True}
_LLAMA = {"heads": 32, "kv_heads": 8}
_PACKED = {"use_cu_seqlens": True, "batch": 1, "boundaries": 17, "seq_q": 16384, "seq_k": 16384, "max_seqlen_q": 2048}


def _dims(size: int) -> Fields:
    return {"key_dim": size, "value_dim": size}


_TRAINED: Mapping[str, Fields] = {  # for flash_attention and its gradients
    "128, 4096 causal": _CAUSAL,
    "128, one prompt of 8192": _CAUSAL | _LLAMA | {"batch": 1, "seq_q": 8192},
    "128, 512 tokens": _CAUSAL | {"batch": 32, "seq_q": 512},
    "128, one head": {"batch": 1, "heads": 1, "seq_q": 4096},
    "64, 16384 dense": {"head_dim": 64, "batch": 1, "seq_q": 16384},
    "64, short rows": _FP16 | {"head_dim": 64, "batch": 64, "heads": 12, "seq_q": 128},
    "32": {"head_dim": 32, "seq_q": 2048},
    "72, images": _FP16 | {"head_dim": 72, "batch": 16, "seq_q": 1024},
    "88": {"head_dim": 88, "batch": 8, "seq_q": 2048},
    "160, cross": _FP16 | {"head_dim": 160, "heads": 8, "seq_q": 1024, "seq_k": 77},
    "192/128, latent prompt": _CAUSAL | {"head_dim": 192, "head_dim_v": 128, "batch": 1, "heads": 128},
    "256": _CAUSAL | {"head_dim": 256, "batch": 2, "heads": 8, "kv_heads": 4},
    "softcap": _CAUSAL | _LLAMA | {"use_softcap": True, "batch": 2},
    "packed": _CAUSAL | _LLAMA | _PACKED,
    "packed, window": _CAUSAL | _LLAMA | _PACKED | {"use_window": True},
    "64, window and s_aux": _CAUSAL | {"head_dim": 64, "use_window": True, "window_left": 127, "use_s_aux": True},
    "fp32": _FP32 | {"head_dim": 64, "batch": 1, "seq_q": 2048},
}

_LINEAR: Mapping[str, Fields] = {  # for linear_attention and its gradients
    "96 heads, 8192 tokens": {},
    "fp32": _FP32,
    "decay a channel": {"decay": "channel"},
    "1 head, 131072 tokens": {"heads": 1, "seq_len": 131072},
    "8 heads, 2048 tokens": {"heads": 8, "seq_len": 2048},
    "16 heads of 64, 256 tokens": {"heads": 16, "head_dim": 64, "seq_len": 256},
    "D = 8": {"heads": 16, "head_dim": 8, "seq_len": 16384},
    "batch of 64, 512 tokens": {"batch": 64, "heads": 32, "seq_len": 512},
    "batch of 512, 64 tokens": {"batch": 512, "heads": 32, "seq_len": 64},
    "batch of 8, 8192 tokens": {"batch": 8, "heads": 32, "seq_len": 8192},
    "from states": {"use_initial_state": True, "heads": 32, "seq_len": 4096},
    "packed": {"varlen": True, "heads": 32, "seq_len": 16384, "boundaries": 65},
}

_LAYER: Fields = {
    "use_qk_l2norm_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
    "use_gate_in_kernel": True,
    "use_dt_bias": True,
    "gate_dtype": DType.BF16,
}
_SAFE: Fields = {"safe_gate": True}
_KDA: Mapping[str, Fields] = {  # for kda and its gradients
    "64 heads": {},
    "64 heads, safe": _SAFE,
    "layer of 32 heads, packed": _LAYER | {"heads": 32, "use_cu_seqlens": True, "boundaries": 9},
    "layer of 16 heads, bounded gate": _LAYER | _SAFE | {"heads": 16, "use_lower_bound": True, "seq_len": 4096},
    "2 × 16 heads of 64, safe": _SAFE | _dims(64) | {"batch": 2, "heads": 16, "seq_len": 4096},
    "64 heads of 64": _dims(64) | {"heads": 64, "batch": 2, "seq_len": 4096},
    "8 heads, safe": _SAFE | {"heads": 8},
    "12 heads, 2048 tokens": {"heads": 12, "seq_len": 2048},
    "2 heads, 65536 tokens, safe": _SAFE | {"heads": 2, "seq_len": 65536},
    "4 heads of 64, 16384 tokens": _dims(64) | {"heads": 4, "seq_len": 16384},
    "4 heads of 32, 16384 tokens": _dims(32) | {"heads": 4, "seq_len": 16384},
    "batch of 32, 256 tokens": _SAFE | {"batch": 32, "heads": 16, "seq_len": 256},
    "batch of 128, 64 tokens": {"batch": 128, "heads": 32, "seq_len": 64},
    "96 dims": _SAFE | _dims(96) | {"heads": 32, "seq_len": 4096},
    "256 dims": _SAFE | _dims(256) | {"heads": 16, "seq_len": 4096},
    "values of 256": _SAFE | {"value_dim": 256, "heads": 16, "seq_len": 4096},
    "fp16": _FP16 | _SAFE | {"heads": 32, "seq_len": 4096},
    "fp32": _FP32 | _dims(64) | {"heads": 16, "seq_len": 4096},
    "fp32, 192 dims": _FP32 | _dims(192) | {"heads": 32, "seq_len": 4096},
    "fp32, 2 heads": _FP32 | _dims(64) | {"heads": 2, "seq_len": 16384},
    "fp32 as tf32": _TF32 | {"heads": 32, "seq_len": 4096},
    "fp32 as tf32, 2 heads of 64": _TF32 | _dims(64) | {"heads": 2, "seq_len": 16384},
    "fp32 as tf32, 2 heads of 192": _TF32 | _dims(192) | {"heads": 2, "seq_len": 16384},
}
_POOL: Fields = {"inplace_final_state": True, "use_state_indices": True, "state_v_first": True}
_STATES: Fields = {"use_initial_state": True, "output_final_state": True}

_DECODE: Fields = _LLAMA | {"batch": 16, "seq_q": 1}
_FP8: Fields = {"kv_cache_dtype": DType.FP8_E4M3, "descales": 16}
_WINDOW: Fields = {"head_dim": 64, "heads": 64, "kv_heads": 8, "window": 128, "sinks": 1}

PROBLEMS: Mapping[str, Mapping[str, Fields]] = {
    "flash_attention": {
        **_TRAINED,
        "fp32 as tf32": _TF32 | {"head_dim": 64, "batch": 1, "seq_q": 2048},
        "decoding, batch of 16": _DECODE | {"seq_k": 8192},
        "decoding, one of 131072": _DECODE | {"batch": 1, "seq_k": 131072},
        "decoding, batch of 256, no groups": {"batch": 256, "heads": 32, "seq_q": 1, "seq_k": 1024},
        "8 drafts": _CAUSAL | _DECODE | {"seq_q": 8, "seq_k": 4096},
        "128 queries of 16384": _CAUSAL | _LLAMA | {"batch": 1, "seq_q": 128, "seq_k": 16384},
    },
    "flash_attention_backward": {
        **_TRAINED,
        "64, one head": {"head_dim": 64, "batch": 1, "heads": 1, "seq_q": 16384},
        "gradient of lse": _CAUSAL | {"use_lse_gradient": True, "seq_q": 2048},
    },
    "paged_attention": {
        "decoding, batch of 16": _DECODE,
        "decoding, one of 131072": _DECODE | {"batch": 1, "max_pages": 8192},
        "decoding, batch of 256": _DECODE | {"batch": 256, "max_pages": 128},
        "decoding, no groups, pages of 256": {"kv_heads": 0, "page_size": 256, "max_pages": 16},
        "decoding, cache of 8 bits": _DECODE | _FP8,
        "8 drafts, 64, cache of 8 bits": _DECODE | _FP8 | {"head_dim": 64, "seq_q": 8},
        "decoding in fp32": _DECODE | _FP32,
        "decoding, 72": _DECODE | {"head_dim": 72},
        "4 drafts": _DECODE | {"seq_q": 4},
        "64 queries a sequence": _LLAMA | {"batch": 4, "seq_q": 64, "page_size": 64, "max_pages": 128},
        "prompt of 4096, pages of 16": _LLAMA | {"batch": 2, "seq_q": 4096, "max_pages": 256},
        "prompt of 4096, pages of 64": _LLAMA | {"batch": 2, "seq_q": 4096, "page_size": 64, "max_pages": 64},
        "prompt of 4096, pages of 1": _LLAMA | {"batch": 2, "seq_q": 4096, "page_size": 1, "max_pages": 4096},
        "prompt, 64, softcap": {"head_dim": 64, "use_softcap": True, "seq_q": 1024, "page_size": 64, "max_pages": 32},
        "prompt, 256": {"head_dim": 256, "heads": 16, "batch": 2, "seq_q": 2048, "page_size": 64, "max_pages": 32},
        "prompt, cache of 8 bits": _LLAMA | _FP8 | {"seq_q": 1024, "page_size": 64, "max_pages": 64},
        "prompt, window and sink": _WINDOW | {"batch": 2, "seq_q": 4096, "max_pages": 256},
        "prompts and steps packed": _LLAMA
        | {"use_cu_seqlens_q": True, "batch": 1, "sequences": 32, "seq_q": 4096, "max_seqlen_q": 1024},
        "steps packed": _LLAMA
        | {"use_cu_seqlens_q": True, "batch": 1, "sequences": 64, "seq_q": 64, "max_seqlen_q": 1},
    },
    "mla_decode": {
        "128 heads, batch of 64": {},
        "128 heads, batch of 128, 2 tokens": {"batch": 128, "seq_q": 2, "max_pages": 128},
        "128 heads, one of 131072": {"batch": 1, "max_pages": 2048},
        "128 heads, pages of 1": {"page_size": 1, "max_pages": 4096},
        "16 heads, batch of 64": {"heads": 16},
        "16 heads, batch of 4": {"heads": 16, "batch": 4, "max_pages": 256},
        "64 heads, fp16": _FP16 | {"heads": 64, "batch": 32},
        "256/128": {"head_dim": 256, "head_dim_v": 128, "heads": 32},
        "288/256": {"head_dim": 288, "head_dim_v": 256, "heads": 32},
        "fp32": _FP32 | {"heads": 16, "batch": 8},
    },
    "streaming_attention": {
        "16384 tokens": {},
        "131072 tokens": {"seq_q": 131072},
        "window of 256": {"window": 256},
        "64, window of 128": _WINDOW | {"seq_q": 8192},
        "window of 4096, groups": _LLAMA | {"window": 4096, "seq_q": 32768},
        "72": {"head_dim": 72, "seq_q": 8192},
        "256": {"head_dim": 256, "heads": 8, "seq_q": 8192},
        "fp32": _FP32 | {"head_dim": 64, "heads": 8, "seq_q": 4096},
        "512 queries of 8192": _LLAMA | {"seq_q": 512, "seq_k": 8192},
        "32 queries of a batch": _LLAMA | {"batch": 16, "seq_q": 32, "seq_k": 8192},
        "decoding": _DECODE | {"seq_k": 8192, "window": 2048},
        "decoding, ragged": _DECODE | {"ragged": True, "seq_k": 8192, "window": 2048},
        "decoding, rolling": _DECODE | {"rolling": True, "seq_k": 8192, "window": 2048},
        "64 tokens, rolling": _LLAMA | {"rolling": True, "seq_q": 64, "seq_k": 8192, "window": 2048},
    },
    "streaming_attention_backward": {
        "16384 tokens": {},
        "64, window of 128": _WINDOW | {"seq_q": 8192},
        "window of 4096, groups": _LLAMA | {"window": 4096, "seq_q": 32768},
        "72": {"head_dim": 72, "seq_q": 8192},
        "256": {"head_dim": 256, "heads": 8, "seq_q": 8192},
        "fp32": _FP32 | {"head_dim": 64, "heads": 8, "seq_q": 4096},
    },
    "linear_attention": {
        **_LINEAR,
        "β to 0.95": {"beta_bound": 0.95},
        "β to 0.5": {"beta_bound": 0.5},
        "β to 0.9, 8 heads": {"beta_bound": 0.9, "heads": 8, "seq_len": 4096},
        "β to 0.9, 512 tokens": {"beta_bound": 0.9, "heads": 32, "seq_len": 512},
        "β to 0.8, keys from -10": {"beta_bound": 0.8, "key_floor": 10, "heads": 32, "seq_len": 4096},
        "β to 0.5, 200 tokens": {"beta_bound": 0.5, "heads": 16, "seq_len": 200},
        "one token": _STATES | {"batch": 64, "heads": 32, "seq_len": 1},
        "16 tokens": _STATES | {"batch": 16, "heads": 32, "seq_len": 16},
    },
    "linear_attention_backward": _LINEAR,
    "kda": {
        **_KDA,
        "prompt with states": _SAFE | _STATES | {"heads": 32, "seq_len": 2048},
        "32 tokens": _STATES | {"heads": 32, "seq_len": 32},
        "decoding": _LAYER | _STATES | {"batch": 64, "heads": 32, "seq_len": 1},
        "decoding in a pool": _LAYER | _POOL | {"batch": 256, "heads": 32, "seq_len": 1, "pool_states": 512},
        "8 drafts in a pool": _LAYER | _POOL | {"batch": 16, "heads": 32, "seq_len": 8, "pool_states": 64},
    },
    "kda_backward": _KDA,
}
