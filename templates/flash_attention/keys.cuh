// Which keys a query attends: those before an end, which is common to all queries or, if causal, depends on the query.
#pragma once
#include "flash_attention/rows.cuh"

// Number of keys a query attends, from key 0 on.
template <bool kCausal>
__device__ __forceinline__ int visible_keys(int query, int seq_q, int seq_k) {
  return kCausal ? max(min(query + 1 + (seq_k - seq_q), seq_k), 0) : seq_k;
}

// Tiles of BN keys from key 0 on; keys at or beyond `keys` are not read.
template <int BN>
struct Walk {
  int tiles, keys;

  __device__ __forceinline__ int key(int tile) const { return tile * BN; }
  __device__ __forceinline__ int end(int) const { return keys; }
};

// Sets scores of keys that a query does not attend to -inf. `visible(i)`: number of keys that the query of the lane's
// row 8 i attends; the tile's keys start at `key`, and the second of each pair of columns is kApart keys after the
// first.
template <int kApart = 1, int kM, int kN, class Visible>
__device__ __forceinline__ void mask(float (&r_s)[kM][kN][4], int key, Visible const& visible) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    int const hidden = visible(i) - key;
#pragma unroll
    for (int e = 0; e < 2 * kN; ++e)
      if (e / 2 * 8 + e % 2 * kApart >= hidden) r_s[i / 2][e / 2][i % 2 * 2 + e % 2] = -kInfinity;
  }
}
