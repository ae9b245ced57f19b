"""Attention by the signatures of FlashInfer: `from tuner import flashinfer` in place of `import flashinfer`.

`tuner.torch.flashinfer` describes the functions.
"""

from tuner.torch.flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    merge_state,
    merge_state_in_place,
    merge_states,
    single_decode_with_kv_cache,
    single_prefill_with_kv_cache,
)

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "merge_state",
    "merge_state_in_place",
    "merge_states",
    "single_decode_with_kv_cache",
    "single_prefill_with_kv_cache",
]
