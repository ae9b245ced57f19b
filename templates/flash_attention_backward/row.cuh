// Values common to all pairs of a row: the exponent relative to which P is computed, and D, the sum of dO ∘ O over the
// row, minus the gradient of lse if there is one.
#pragma once
#include "math.cuh"
#include "types.cuh"

// P = 2^(scale · log₂ e · S - shift). A row that attended no key has an lse of -inf; its shift makes P zero.
__device__ __forceinline__ float shift_of(float lse) { return lse == -kInfinity ? kInfinity : lse * kLog2e; }

// The amount subtracted from dO Vᵀ. If no key was attended, P is 0, and dlse may be NaN: it is not read.
__device__ __forceinline__ float delta_of(float row_sum, float lse, float const* g_dlse) {
  if (g_dlse == nullptr) return row_sum;
  return lse == -kInfinity ? 0 : row_sum - *g_dlse;
}

// One row, computed by the first D / 8 of kLanes adjacent lanes, 8 elements each; all lanes get the sum.
template <class T, int D, int kLanes>
__device__ __forceinline__ float row_product(T const* g_dout, T const* g_o, int lane) {
  float sum = 0;
  if (lane < D / 8) {
    uint4 const a = reinterpret_cast<uint4 const*>(g_dout)[lane], b = reinterpret_cast<uint4 const*>(g_o)[lane];
    uint32_t const left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum += unpack_lo<T>(left[i]) * unpack_lo<T>(right[i]);
      sum += unpack_hi<T>(left[i]) * unpack_hi<T>(right[i]);
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  return sum;
}
