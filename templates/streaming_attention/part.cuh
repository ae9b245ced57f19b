// Attention over some of the keys, and its merging with that over others.
#pragma once
#include "math.cuh"
#include "types.cuh"

// What a row has summed up: exponentials relative to 2^max, in all and times V.
struct RowSum {
  float max, sum;
};

// 8 elements of a row of O.
struct Part {
  float o[8] = {};
  RowSum row{-kInfinity, 0};

  __device__ __forceinline__ void add(float const* other_o, RowSum other) {
    float const raised = fmaxf(row.max, other.max), shift = raised == -kInfinity ? 0 : raised;
    float const mine = exp2_approx(row.max - shift), theirs = exp2_approx(other.max - shift);
#pragma unroll
    for (int d = 0; d < 8; ++d) o[d] = o[d] * mine + other_o[d] * theirs;
    row = {raised, row.sum * mine + other.sum * theirs};
  }
  // 0 where no key was attended.
  template <class T>
  __device__ __forceinline__ void store(T* g_o) const {
    float const inverse = row.sum > 0 ? rcp_approx(row.sum) : 0;
    uint4 chunk;
    chunk.x = pack<T>(o[0] * inverse, o[1] * inverse);
    chunk.y = pack<T>(o[2] * inverse, o[3] * inverse);
    chunk.z = pack<T>(o[4] * inverse, o[5] * inverse);
    chunk.w = pack<T>(o[6] * inverse, o[7] * inverse);
    *reinterpret_cast<uint4*>(g_o) = chunk;
  }
  __device__ __forceinline__ void store_sums(float* g_o) const {
#pragma unroll
    for (int d = 0; d < 8; ++d) g_o[d] = o[d];
  }
  // -inf where no key was attended.
  __device__ __forceinline__ float lse() const { return (row.max + log2_approx(row.sum)) * kLn2; }
};
