// Attention over a part of the keys, and merging of partial results.
#pragma once
#include "math.cuh"
#include "types.cuh"

// The sum of a row's exponentials relative to 2^max; their products with V are stored separately.
struct alignas(8) RowSum {
  float max, sum;
};

// 4 elements of a row of O, which are loaded and stored at once.
struct Part {
  float o[4] = {};
  RowSum row{-kInfinity, 0};

  __device__ __forceinline__ void add(float const* other_o, RowSum other) {
    float const raised = fmaxf(row.max, other.max), shift = raised == -kInfinity ? 0 : raised;
    float const mine = exp2_approx(row.max - shift), theirs = exp2_approx(other.max - shift);
    float4 const four = *reinterpret_cast<float4 const*>(other_o);
    float const found[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int d = 0; d < 4; ++d) o[d] = o[d] * mine + found[d] * theirs;
    row = {raised, row.sum * mine + other.sum * theirs};
  }
  // 0 if no key was attended.
  template <class T>
  __device__ __forceinline__ void store(T* g_o) const {
    float const inverse = row.sum > 0 ? rcp_approx(row.sum) : 0;
    *reinterpret_cast<uint2*>(g_o) =
        make_uint2(pack<T>(o[0] * inverse, o[1] * inverse), pack<T>(o[2] * inverse, o[3] * inverse));
  }
  __device__ __forceinline__ void store_sums(float* g_o) const {
    *reinterpret_cast<float4*>(g_o) = make_float4(o[0], o[1], o[2], o[3]);
  }
  // -inf if no key was attended.
  __device__ __forceinline__ float lse() const { return (row.max + log2_approx(row.sum)) * kLn2; }
};
