// Positions of the images of packed sequences: those of sequence n start at cu_seqlens[n] / C + n, so that they never
// overlap, for any lengths.
#pragma once
#include "kda/token.cuh"

// Index of the first image of sequence n, per head.
template <int C, class Index>
__device__ __forceinline__ int first_image(Index const* cu_seqlens, int n) {
  return cu_seqlens ? int(cu_seqlens[n] / C) + n : 0;
}
// The sequence of image `index`, out of `count` sequences.
template <int C, class Index>
__device__ __forceinline__ int sequence_of(Index const* cu_seqlens, int count, int index) {
  int low = 0, high = count;  // first_image(low) <= index < first_image(high)
  while (high - low > 1) {
    int const middle = (low + high) / 2;
    (first_image<C>(cu_seqlens, middle) <= index ? low : high) = middle;
  }
  return low;
}
// Index of the first image of a head of sequence n, of `count`, among those of all heads.
template <int C, class Index>
__device__ __forceinline__ int64_t image_of(Index const* cu_seqlens, Sequence const& at, int n, int count, int head,
                                            int heads, int seq_len) {
  int64_t const each = cu_seqlens ? seq_len / C + count : (seq_len + C - 1) / C;
  return (int64_t(at.batch) * heads + head) * each + first_image<C>(cu_seqlens, n);
}
