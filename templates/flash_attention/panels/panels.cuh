// Tiles of 16-bit elements in shared memory for TMA and wgmma: panels side by side, each [rows][its columns], swizzled
// over a row of it.
#pragma once
#include "cluster.cuh"
#include "swizzle.cuh"
#include "tma.cuh"
#include "types.cuh"
#include "wgmma.cuh"

// The maps of one tensor: boxes of 64, 32 and 16 columns, swizzled over 128, 64 and 32 bytes; null for a width that no
// panel has.
struct PanelMaps {
  TensorMap const *columns64, *columns32, *columns16;

  __device__ __forceinline__ TensorMap const* of(int width) const {
    return width == 64 ? columns64 : width == 32 ? columns32 : columns16;
  }
};

// kCols columns as panels of kWidest columns and less, the widest first. kUniform: of kWidest columns as far as they
// begin within kCols, so that one wgmma spans them; what lies beyond the tensor, TMA fills with zeros.
// Closed forms on purpose: a loop in a constexpr function is not folded when the caller's loop is unrolled, and leaves
// run-time branches between the wgmmas of a group.
template <int kCols, int kWidest, bool kUniform>
struct Panels {
  static constexpr int k64 = kWidest < 64 ? 0 : kUniform ? (kCols + 63) / 64 : kCols / 64;
  static constexpr int kAfter64 = kCols > 64 * k64 ? kCols - 64 * k64 : 0;
  static constexpr int k32 = kWidest < 32 ? 0 : kUniform ? (kAfter64 + 31) / 32 : kAfter64 / 32;
  static constexpr int kAfter32 = kAfter64 > 32 * k32 ? kAfter64 - 32 * k32 : 0;
  static constexpr int k16 = (kAfter32 + 15) / 16;
  static constexpr int kCount = k64 + k32 + k16;
  static constexpr int kColumns = 64 * k64 + 32 * k32 + 16 * k16;
  static constexpr int kWidths = 64 * (k64 > 0) + 32 * (k32 > 0) + 16 * (k16 > 0);  // those that there are

  static constexpr __host__ __device__ int width(int panel) { return panel < k64 ? 64 : panel < k64 + k32 ? 32 : 16; }
  static constexpr __host__ __device__ int column(int panel) {  // its first
    return panel < k64         ? 64 * panel
           : panel < k64 + k32 ? 64 * k64 + 32 * (panel - k64)
                               : 64 * k64 + 32 * k32 + 16 * (panel - k64 - k32);
  }
  static constexpr __host__ __device__ int holding(int column) {
    return column < 64 * k64              ? column / 64
           : column < 64 * k64 + 32 * k32 ? k64 + (column - 64 * k64) / 32
                                          : k64 + k32 + (column - 64 * k64 - 32 * k32) / 16;
  }
  static constexpr __host__ __device__ Swizzle swizzle(int width) {
    return width == 64 ? Swizzle::k128B : width == 32 ? Swizzle::k64B : Swizzle::k32B;
  }
  // Of a tile, with the room that the next one's swizzle needs to begin with it.
  static constexpr __host__ __device__ int bytes(int rows) { return (2 * kColumns * rows + 1023) / 1024 * 1024; }
  static constexpr __host__ __device__ int loaded_bytes(int rows) { return 2 * kColumns * rows; }

  // Byte offset in a tile of `rows` rows; pairs of elements stay together.
  static constexpr __host__ __device__ uint32_t offset(int rows, int row, int col) {
    int const panel = holding(col), columns = width(panel);
    return 2 * rows * column(panel) + swizzled(2 * (row * columns + col - column(panel)), swizzle(columns));
  }

  // The maps that loads and stores use: a copy then need not wait for its map.
  static __device__ __forceinline__ void prefetch(PanelMaps const& maps) {
    if (k64 > 0) tma_prefetch(maps.columns64);
    if (k32 > 0) tma_prefetch(maps.columns32);
    if (k16 > 0) tma_prefetch(maps.columns16);
  }

  // All panels of kRows rows from `row` on. Blocks of a cluster load a part of the rows each, for all.
  template <int kRows, int kCluster = 1>
  static __device__ __forceinline__ void load(uint32_t s_tile, PanelMaps const& maps, uint32_t barrier, int row,
                                              int head, int batch) {
    int const first = kCluster == 1 ? 0 : cluster_rank() * (kRows / kCluster);
    load_piece<kRows, kCluster>(s_tile, maps, barrier, first, row + first, head, batch);
  }
  // Of these, the rows of a box, from their row `first` on; into all blocks of a cluster.
  template <int kRows, int kCluster>
  static __device__ __forceinline__ void load_piece(uint32_t s_tile, PanelMaps const& maps, uint32_t barrier, int first,
                                                    int row, int head, int batch) {
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
      uint32_t const s_piece = s_tile + 2 * kRows * column(p) + 2 * width(p) * first;
      if constexpr (kCluster == 1)
        tma_load(s_piece, maps.of(width(p)), barrier, column(p), head, row, batch);
      else
        tma_load_multicast(s_piece, maps.of(width(p)), barrier, (1 << kCluster) - 1, column(p), head, row, batch);
    }
  }
  template <int kRows>
  static __device__ __forceinline__ void store(PanelMaps const& maps, uint32_t s_tile, int row, int head, int batch) {
#pragma unroll
    for (int p = 0; p < kCount; ++p)
      tma_store(maps.of(width(p)), s_tile + 2 * kRows * column(p), column(p), head, row, batch);
  }

  // 16 columns, contiguous in k, from column k on.
  template <int kRows>
  static __device__ __forceinline__ uint64_t k_major(uint32_t s_tile, int k) {
    int const panel = holding(k), columns = width(panel);
    uint64_t const tile = wgmma_descriptor(s_tile, 16, 16 * columns, swizzle(columns));
    return wgmma_advance(tile, 2 * kRows * column(panel) + 2 * (k - column(panel)));
  }
  // 16 rows from row k on of the panels of equal width that begin at `col`, transposed.
  template <int kRows>
  static __device__ __forceinline__ uint64_t mn_major(uint32_t s_tile, int k, int col) {
    int const columns = width(holding(col));
    uint64_t const tile = wgmma_descriptor(s_tile, 2 * columns * kRows, 16 * columns, swizzle(columns));
    return wgmma_advance(tile, 2 * kRows * col + 2 * columns * k);
  }
};
