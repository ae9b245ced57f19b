// Scales of 8-bit keys or values.
#pragma once
#include "types.cuh"

struct Descale {
  float const* data;  // [sequences, HK]
  int64_t sequence_stride, head_stride;
  int sequences;  // 0: the scale is 1 for all

  __device__ __forceinline__ float of(int n, int kv_head) const {
    return sequences > 0 ? data[n * sequence_stride + kv_head * head_stride] : 1;
  }
  // The factor of scores. If keys are scaled by 0, it is slightly above 0: masked scores are -inf, and -inf · 0 would
  // be NaN.
  __device__ __forceinline__ float of_scores(float softmax_scale, int n, int kv_head) const {
    float const scale = softmax_scale * of(n, kv_head);
    return sequences > 0 && fabsf(scale) < kLeast ? kLeast : scale;
  }
  static constexpr float kLeast = 1e-30f;  // with this factor, any score of 16-bit queries and 8-bit keys is negligible
};

template <int kM, int kN>
__device__ __forceinline__ void scale_by(float (&r_o)[kM][kN][4], float scale) {
#pragma unroll
  for (int i = 0; i < kM * kN * 4; ++i) r_o[i / (kN * 4)][i / 4 % kN][i % 4] *= scale;
}
