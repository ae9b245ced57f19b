// Where a gradient goes.
#pragma once
#include "tma.cuh"
#include "types.cuh"

// A gradient of a sequence's rows: of the tensor's, those from `row0` on. Packed, they lie in global memory from g_rows
// on.
template <class T>
struct Target {
  TensorMap const* map;
  int row0, rows, head, batch;
  T* g_rows;
  int64_t stride;
};
