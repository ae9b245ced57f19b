// What keys or values of 8 bits are multiplied with.
#pragma once
#include "types.cuh"

struct Descale {
  float const* data;  // [sequences, HK]
  int64_t sequence_stride, head_stride;
  int sequences;  // 0: 1 for all

  __device__ __forceinline__ float of(int n, int kv_head) const {
    return sequences > 0 ? data[n * sequence_stride + kv_head * head_stride] : 1;
  }
};
