// A warp's addresses in tiles of bf16 in shared memory, for ldmatrix.
#pragma once
#include "flash_attention/rows.cuh"
#include "ldmatrix.cuh"
#include "mma.cuh"
#include "thread.cuh"

// This lane's offset in 16 rows of 2 chunks, for operand A, and for operand B when a row is a step of k.
template <class Layout>
__device__ __forceinline__ uint32_t rows_by_lane(int lane) {
  return Layout::offset(lane % 16, lane / 16);
}
// The same for operand B when a row is a column of the product, and for operand A when a row is a step of k.
template <class Layout>
__device__ __forceinline__ uint32_t chunks_by_lane(int lane) {
  return Layout::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}
