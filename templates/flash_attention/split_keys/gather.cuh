// Gathers rows of 16-bit elements from arbitrary global addresses into a tile in shared memory.
#pragma once
#include "flash_attention/rows.cuh"

// Starts copying kRows rows, row i from address(i); the first `valid` of them exist, the others become zeros. All
// kThreads threads that share the tile call it with their index, and commit.
template <class Layout, int kRows, int kThreads, class Address>
__device__ __forceinline__ void gather_rows(uint32_t s_tile, int thread, int valid, Address const& address) {
  constexpr int kRowsPerPass = kThreads / Layout::kChunks;
  static_assert(kRowsPerPass > 0, "a pass copies at least one row");
  int const row0 = thread / Layout::kChunks, chunk = thread % Layout::kChunks;
  if (row0 >= kRowsPerPass) return;
#pragma unroll
  for (int pass = 0; pass < ceil_div(kRows, kRowsPerPass); ++pass) {
    int const row = row0 + pass * kRowsPerPass;
    if (kRows % kRowsPerPass == 0 || row < kRows)
      cp_async<16>(s_tile + Layout::offset(row, chunk), address(min(row, valid - 1)) + chunk * 8, row < valid ? 16 : 0);
  }
}
