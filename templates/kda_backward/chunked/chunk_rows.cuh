// The rows of a chunk in global memory, and their norms, if the kernel normalizes q and k.
#pragma once
#include "kda_backward/chunked/block.cuh"
#include "kda/token.cuh"
#include "math.cuh"

// The first `tokens` of the rows exist.
template <class T, class Gate, class Beta>
struct ChunkRows {
  T const *q, *k;
  Gate const* g;
  Beta const* beta;
  int64_t q_stride, k_stride, g_stride, beta_stride;
  int tokens;
};

// Factors of the lane's rows of q, including scale, and of k.
struct RowFactors {
  float q[2], k[2];

  static __device__ __forceinline__ float of_token(float const (&r)[2], int token) {
    return __shfl_sync(0xffffffff, token < 8 ? r[0] : r[1], token % 8 * 4);
  }
};

template <class T>
__device__ __forceinline__ void add_squares(float (&r)[2], T const* x, int64_t stride, int tokens, int lane) {
  Tile tile;
  load_tile(tile, x, stride, tokens, lane);
#pragma unroll
  for (int e = 0; e < 4; ++e) r[e / 2] += tile[e] * tile[e];
}
// The inverse norms of the rows of q, then of k, are stored to `g_lengths` if kNormalize.
template <int K, bool kNormalize, class Rows>
__device__ __forceinline__ RowFactors row_factors(Rows const& rows, float scale, float* g_lengths, int lane) {
  RowFactors r{{scale, scale}, {1, 1}};
  if constexpr (kNormalize) {
    float q_sums[2] = {}, k_sums[2] = {};
    for (int channel = 0; channel < K; channel += 8) {
      add_squares(q_sums, rows.q + channel, rows.q_stride, rows.tokens, lane);
      add_squares(k_sums, rows.k + channel, rows.k_stride, rows.tokens, lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float const q = rsqrtf(quad_sum(q_sums[half]) + kL2Epsilon), k = rsqrtf(quad_sum(k_sums[half]) + kL2Epsilon);
      r.q[half] = q * scale, r.k[half] = k;
      if (lane % 4 == 0) g_lengths[lane / 4 + 8 * half] = q, g_lengths[kChunk + lane / 4 + 8 * half] = k;
    }
  }
  return r;
}
