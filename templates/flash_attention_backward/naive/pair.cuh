// One query and one key, by one thread in fp32; values that would be operands of tensor cores are rounded like
// operands, so that errors equal those of the other implementations.
#pragma once
#include "flash_attention/softcap.cuh"
#include "flash_attention_backward/row.cuh"

struct Pair {
  float p, ds;  // a probability, and the gradient of its score
};

// A score in base 2, and its derivative with respect to the scaled score before the cap.
struct Score {
  float exponent, slope;
};
__device__ __forceinline__ Score score_of(float product, float softmax_scale) {
  return {product * softmax_scale * kLog2e, 1};
}
__device__ __forceinline__ Score score_of(float product, Softcap scale) {
  float const tanh = capped(scale.inner * product);
  return {scale.outer * tanh, fmaf(-tanh, tanh, 1)};
}

// Q and K have D columns; dO, O and V have DV.
template <class T, int D, int DV = D>
struct QueryRow {
  T const *q, *dout;
  float shift, delta;

  __device__ __forceinline__ QueryRow(T const* q, T const* dout, T const* o, float lse, float const* dlse)
      : q(q), dout(dout), shift(shift_of(lse)), delta(delta_of(dot<DV>(dout, o), lse, dlse)) {}

  // `scale`: scale of the softmax, or a Softcap.
  template <class Scale>
  __device__ __forceinline__ Pair with(T const* k, T const* v, Scale const& scale) const {
    Score const score = score_of(dot<D>(q, k), scale);
    float const p = exp2_approx(score.exponent - shift);
    return {rounded(p), rounded(p * (dot<DV>(dout, v) - delta) * score.slope)};
  }
  static __device__ __forceinline__ float rounded(float x) { return to_float(from_float<T>(x)); }
  template <int kColumns>
  static __device__ __forceinline__ float dot(T const* a, T const* b) {
    float sum = 0;
#pragma unroll 8
    for (int d = 0; d < kColumns; ++d) sum += to_float(a[d]) * to_float(b[d]);
    return sum;
  }
};
