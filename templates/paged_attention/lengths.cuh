// Number of positions of a sequence.
#pragma once
#include "types.cuh"

struct Lengths {
  int const* data;
  int64_t stride;
  int most;  // maximum number of positions in a table

  __device__ __forceinline__ int of(int b) const { return min(max(data[b * stride], 0), most); }
};
