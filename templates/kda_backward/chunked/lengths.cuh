// Normalization of rows of q and k in the kernel, and its effect on their gradients. With n = x / length, dx = (dn - n
// (n · dn)) / length.
#pragma once
#include "kda_backward/chunked/block.cuh"
#include "thread.cuh"

// One float for each of the lane's rows of q and of k.
struct RowPair {
  float q[2], k[2];
};

// The inverse norms stored by prepare.
template <bool kNormalize>
__device__ __forceinline__ RowPair inverse_lengths(float const* g_lengths, int lane) {
  if constexpr (!kNormalize) return {{1, 1}, {1, 1}};
  float const* g_k = g_lengths + kChunk;
  return {{g_lengths[lane / 4], g_lengths[lane / 4 + 8]}, {g_k[lane / 4], g_k[lane / 4 + 8]}};
}

// Adds n · dn over the lane's channels of a tile.
__device__ __forceinline__ void add_along(RowPair& r, Tile const& q, Tile const& dq, Tile const& k, Tile const& dk) {
#pragma unroll
  for (int e = 0; e < 4; ++e) r.q[e / 2] += q[e] * dq[e], r.k[e / 2] += k[e] * dk[e];
}
// Address of a warp's sum of n · dn over its channels, in `s_parts` [kWarps, 2, kChunk] for the warps that share the
// chunk: no register holds it while values are summed.
__device__ __forceinline__ float* own_part(float* s_parts, int warp, int half, int lane) {
  return s_parts + warp * 2 * kChunk + lane / 4 + 8 * half;
}
__device__ __forceinline__ void clear_part(float* s_parts, int warp, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* s_part = own_part(s_parts, warp, half, lane);
    if (lane % 4 == 0) s_part[0] = s_part[kChunk] = 0;
  }
}
__device__ __forceinline__ void add_part(float* s_parts, int warp, RowPair const& along, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float const q = quad_sum(along.q[half]), k = quad_sum(along.k[half]);
    float* s_part = own_part(s_parts, warp, half, lane);
    if (lane % 4 == 0) s_part[0] += q, s_part[kChunk] += k;
  }
}
// The projections over all channels; `barrier` is for the warps that share the chunk.
template <int kWarps>
__device__ __forceinline__ RowPair all_along(float* s_parts, int barrier, int lane) {
  named_barrier_sync(barrier, 32 * kWarps);
  RowPair r = {};
  for (int i = 0; i < kWarps; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float const* s_part = own_part(s_parts, i, half, lane);
      r.q[half] += s_part[0], r.k[half] += s_part[kChunk];
    }
  return r;
}

// dx of a tile from the rows x in global memory and dn in `s_sum`.
template <class T>
__device__ __forceinline__ void before_normalising(Tile& r, T const* rows, int64_t stride, float const* s_sum,
                                                   float const (&lengths)[2], float const (&along)[2], int tokens,
                                                   int lane) {
  load_tile(r, rows, stride, tokens, lane);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float const length = lengths[e / 2];
    r[e] = (s_sum[32 * e + lane] - r[e] * length * along[e / 2]) * length;
  }
}
