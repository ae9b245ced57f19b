// How beta is given: as it is, or before a sigmoid, which counts once or twice.
#pragma once
#include "math.cuh"

// kTimes: 0 without a sigmoid.
template <int kTimes>
__device__ __forceinline__ float beta_of(float x) {
  return kTimes == 0 ? x : kTimes / (1 + exp2_approx(-x * kLog2e));
}
// Its slope; 1 - beta would cancel where beta is near 1.
template <int kTimes>
__device__ __forceinline__ float beta_slope(float x) {
  return kTimes == 0 ? 1 : beta_of<kTimes>(x) / (1 + exp2_approx(x * kLog2e));
}
