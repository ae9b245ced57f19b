// movmatrix (sm_75): transposes one 8x8 matrix of 16-bit elements in the registers of a warp, from and to Matrix8x8.
// volatile, since the compiler moves other assembly into a branch that takes its result: not all lanes need take it.
#pragma once
#include "types.cuh"

__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}
