// movmatrix: transposes one 8x8 matrix of 16-bit elements in the registers of a warp, from and to Matrix8x8.
#pragma once
#include "fragment.cuh"

__forceinline__ uint32_t movmatrix_trans(uint32_t pair, emulator::Here site = {}) {
  int const lane = int(threadIdx.x % 32);
  uint32_t transposed = 0;
  for (int e = 0; e < Matrix8x8::kElements; e++) {
    int const row = Matrix8x8::col(lane, e), col = Matrix8x8::row(lane, e);  // source of the element
    uint32_t const theirs = __shfl_sync(0xffffffff, pair, row * 4 + col / 2, 32, site);
    transposed |= (theirs >> 16 * (col % 2) & 0xffff) << 16 * e;
  }
  return transposed;
}
