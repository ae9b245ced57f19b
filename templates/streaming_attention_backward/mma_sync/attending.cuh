// Which queries attend a key: those from the key's position on, and for a key that is not a sink those within a window.
#pragma once
#include "flash_attention/rows.cuh"
#include "types.cuh"

// Keys that are attended as sinks: none if every window reaches back to key 0.
__device__ __forceinline__ int sink_count(int sinks, int window, int seq_k) {
  return window >= seq_k ? 0 : min(sinks, seq_k);
}

// The tiles of BM queries in [begin, end), limited to existing queries: a head has `keys` of them.
template <int BM>
struct QueryWalk {
  int tiles, begin, last, keys;

  __device__ __forceinline__ QueryWalk(int begin, int end, int seq_q)
      : begin(max(begin, 0)), last(min(end, seq_q)), keys(seq_q) {
    tiles = ceil_div(max(last - this->begin, 0), BM);
  }
  __device__ __forceinline__ int key(int tile) const { return begin + tile * BM; }
  __device__ __forceinline__ int end(int) const { return last; }
};

// Sets scores [16 kM keys, 8 kN queries] to -inf if the query is before the key, or `window` or more after it. `ahead`:
// the position of the first query, relative to that of the first key.
template <int kM, int kN>
__device__ __forceinline__ void hide_outside(float (&r_s)[kM][kN][4], int ahead, int window, int lane) {
  int const first = lane / 4 - lane % 4 * 2 - ahead, end = first + window;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        int const distance = n * 8 + e % 2 - m * 16 - e / 2 * 8;
        if (distance < first || distance >= end) r_s[m][n][e] = -kInfinity;
      }
}
