// Rows of O in global memory, for tiles that a copy of the complete tile must not write.
#pragma once
#include "types.cuh"

// Location of rows of O.
template <class T>
struct OutputRows {
  T* g_o;
  int64_t query_stride, head_stride;

  __device__ __forceinline__ T* at(int64_t query, int head) const {
    return g_o + query * query_stride + head * head_stride;
  }
};
