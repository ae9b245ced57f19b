// The derivative of a capped score, and the remaining factor of scores in the exponent.
#pragma once
#include "flash_attention/softcap.cuh"

// The derivative of a score with respect to its value before `cap`: 1 without a Softcap; 0 for a masked score with one.
__device__ __forceinline__ float slope(float, float) { return 1; }
__device__ __forceinline__ float slope(float score, Softcap) {
  float const tanh = fmaxf(score, -1);
  return fmaf(-tanh, tanh, 1);
}
__device__ __forceinline__ float factor_of(float scale) { return scale; }
__device__ __forceinline__ float factor_of(Softcap scale) { return scale.outer; }

// The return type of scale_of; nvcc's host pass would not deduce it.
template <bool kSoftcap>
struct ScaleOf {
  using Type = float;
};
template <>
struct ScaleOf<true> {
  using Type = Softcap;
};
