// One query and one key, by one thread in fp32; what a product of tensor cores would take is rounded as for one, so that
// errors are those of the other implementations.
#pragma once
#include "flash_attention_backward/row.cuh"

struct Pair {
  float p, ds;  // a probability, and the gradient of its score
};

template <class T, int D>
struct QueryRow {
  T const *q, *dout;
  float shift, delta;

  __device__ __forceinline__ QueryRow(T const* q, T const* dout, T const* o, float lse, float const* dlse)
      : q(q), dout(dout), shift(shift_of(lse)), delta(delta_of(dot(dout, o), lse, dlse)) {}

  __device__ __forceinline__ Pair with(T const* k, T const* v, float scale) const {
    float const p = exp2_approx(dot(q, k) * scale * kLog2e - shift);
    return {rounded(p), rounded(p * (dot(dout, v) - delta))};
  }
  static __device__ __forceinline__ float rounded(float x) { return to_float(from_float<T>(x)); }
  static __device__ __forceinline__ float dot(T const* a, T const* b) {
    float sum = 0;
#pragma unroll 8
    for (int d = 0; d < D; ++d) sum += to_float(a[d]) * to_float(b[d]);
    return sum;
  }
};
