// How many positions a sequence has so far.
#pragma once
#include "types.cuh"

struct Lengths {
  int const* data;
  int64_t stride;
  int most;  // positions that a table has pages for

  __device__ __forceinline__ int of(int b) const { return min(max(data[b * stride], 0), most); }
};
