// Number of positions of a sequence.
#pragma once
#include "types.cuh"

// The number for sequence b: its entry of `cache_seqlens`, or `seq_k` without one. A cache that does not roll has slots
// for seq_k positions.
template <bool kRolling>
__device__ __forceinline__ int positions_of(int const* cache_seqlens, int b, int seq_k) {
  constexpr int kMost = 1 << 30;
  return cache_seqlens ? min(max(cache_seqlens[b], 0), kRolling ? kMost : seq_k) : seq_k;
}
