// Destination of a gradient.
#pragma once
#include "tma.cuh"
#include "types.cuh"

// A gradient of a sequence's rows: those of the tensor from `row0` on. For packed sequences, they start at g_rows in
// global memory.
template <class T>
struct Target {
  TensorMap const* map;
  int row0, rows, head, batch;
  T* g_rows;
  int64_t stride;
};
