// One row of attention by one thread, in fp32: online softmax over keys that are processed one after another.
#pragma once
#include "flash_attention/softcap.cuh"
#include "types.cuh"

// kColumns elements of a row of O, and the row's scores over all D elements of q and k. T is any type that to_float
// accepts.
template <class T, int D, int kColumns>
struct Row {
  float o[kColumns] = {};
  float peak = -kInfinity, sum = 0;

  // `k`: a row of K; `v`: this thread's columns of the same row of V; K is any type that to_float accepts. `scale`: the
  // result of scale_of.
  template <class K, class Scale>
  __device__ __forceinline__ void attend(T const* q, K const* k, K const* v, Scale const& scale) {
    float const score = scaled(dot(q, k), scale), raised = fmaxf(peak, score);
    float const factor = exp2_approx(peak - raised), p = exp2_approx(score - raised);
#pragma unroll
    for (int d = 0; d < kColumns; ++d) o[d] = o[d] * factor + p * to_float(v[d]);
    sum = sum * factor + p;
    peak = raised;
  }
  __device__ __forceinline__ void store(T* g_o) const {
    float const inverse = sum > 0 ? rcp_approx(sum) : 0;
#pragma unroll
    for (int d = 0; d < kColumns; ++d) g_o[d] = from_float<T>(o[d] * inverse);
  }
  __device__ __forceinline__ float lse() const { return (peak + log2_approx(sum)) * kLn2; }  // -inf without any key

  template <class K>
  static __device__ __forceinline__ float dot(T const* a, K const* b) {
    float sum = 0;
#pragma unroll 8
    for (int d = 0; d < D; ++d) sum += to_float(a[d]) * to_float(b[d]);
    return sum;
  }
};
