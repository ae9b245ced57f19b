// The derivative of a capped score, and what is left to multiply scores with in the exponent.
#pragma once
#include "flash_attention/softcap.cuh"

// The derivative of a score by what it was before `cap`: 1 without a Softcap. A hidden one has none.
__device__ __forceinline__ float slope(float, float) { return 1; }
__device__ __forceinline__ float slope(float score, Softcap) {
  float const tanh = fmaxf(score, -1);
  return fmaf(-tanh, tanh, 1);
}
__device__ __forceinline__ float factor_of(float scale) { return scale; }
__device__ __forceinline__ float factor_of(Softcap scale) { return scale.outer; }

// What scale_of returns; nvcc's pass for the host would not deduce it.
template <bool kSoftcap>
struct ScaleOf {
  using Type = float;
};
template <>
struct ScaleOf<true> {
  using Type = Softcap;
};
