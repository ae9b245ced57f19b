// Transformations of scores before the softmax: scaling, with or without a cap.
#pragma once
#include "math.cuh"

// For scores x, softcap · tanh(softmax_scale · x / softcap) in base 2 equals outer · capped(inner · x).
struct Softcap {
  float inner, outer;
};

// 1 - 2 / (1 + 2^x): the tanh of x / (2 log2 e). The absolute error is near 2^-23, compared with 2^-11 of tanh.approx.
__device__ __forceinline__ float capped(float x) { return fmaf(-2, rcp_approx(1 + exp2_approx(x)), 1); }

// The scale of scores, in base 2: a number, or a Softcap.
template <bool kSoftcap>
__device__ __forceinline__ auto scale_of(float softmax_scale, float softcap) {
  if constexpr (kSoftcap)
    return Softcap{2 * kLog2e * softmax_scale / softcap, softcap * kLog2e};
  else
    return softmax_scale * kLog2e;
}

// A scaled score.
__device__ __forceinline__ float scaled(float score, float scale) { return scale * score; }
__device__ __forceinline__ float scaled(float score, Softcap scale) { return scale.outer * capped(scale.inner * score); }

// Both become capped(inner · score), with one reciprocal: special functions are scarcer than multiplications. The tanh
// is 1 long before 2^60, and the product of two such values is still finite.
__device__ __forceinline__ void cap_two(float& x, float& y, float inner) {
  float const a = 1 + exp2_approx(fminf(inner * x, 60)), b = 1 + exp2_approx(fminf(inner * y, 60));
  float const twice = -2 * rcp_approx(a * b);
  x = fmaf(twice, b, 1);
  y = fmaf(twice, a, 1);
}

// Caps a lane's scores, and returns the factor that remains to be applied.
template <int kM, int kN>
__device__ __forceinline__ float cap(float (&)[kM][kN][4], float scale) {
  return scale;
}
template <int kM, int kN>
__device__ __forceinline__ float cap(float (&r_s)[kM][kN][4], Softcap scale) {
#pragma unroll
  for (int i = 0; i < kM * kN * 4; i += 2) {
    float(&four)[4] = r_s[i / 4 / kN][i / 4 % kN];
    cap_two(four[i % 4], four[i % 4 + 1], scale.inner);
  }
  return scale.outer;
}
