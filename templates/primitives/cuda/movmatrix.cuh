// movmatrix (sm_75): transposes one 8x8 matrix of 16-bit elements in the registers of a warp, from and to Matrix8x8.
// Declared volatile, since the compiler may otherwise move the asm into a branch that uses its result, which some lanes
// may not take.
#pragma once
#include "types.cuh"

__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}
