// Descriptors of tiles in panels, as tcgen05 reads them.
#pragma once
#include "flash_attention/panels/panels.cuh"
#include "tcgen05.cuh"

// 16 columns, contiguous in k, from column k on of kRows rows.
template <class Panels, int kRows>
__device__ __forceinline__ uint64_t k_major(uint32_t s_tile, int k) {
  int const panel = Panels::holding(k), columns = Panels::width(panel);
  uint64_t const tile = tcgen05_descriptor(s_tile, 16, 16 * columns, Panels::swizzle(columns));
  return tcgen05_advance(tile, 2 * kRows * Panels::column(panel) + 2 * (k - Panels::column(panel)));
}
// 16 of kRows rows from row k on, of the panels of equal width that begin at `col`, transposed.
template <class Panels, int kRows>
__device__ __forceinline__ uint64_t mn_major(uint32_t s_tile, int k, int col) {
  int const columns = Panels::width(Panels::holding(col));
  uint64_t const tile = tcgen05_descriptor(s_tile, 2 * columns * kRows, 16 * columns, Panels::swizzle(columns));
  return tcgen05_advance(tile, 2 * kRows * col + 2 * columns * k);
}
