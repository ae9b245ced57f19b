// Rows of O in global memory, where no copy of a whole tile may write them.
#pragma once
#include "types.cuh"

// Where rows of O lie.
template <class T>
struct OutputRows {
  T* g_o;
  int64_t query_stride, head_stride;

  __device__ __forceinline__ T* at(int64_t query, int head) const {
    return g_o + query * query_stride + head * head_stride;
  }
};
