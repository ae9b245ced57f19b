// Tiles of 16-bit elements in shared memory for TMA and wgmma: adjacent panels, each [rows][its columns], with a
// swizzle that spans a row of the panel.
#pragma once
#include "cluster.cuh"
#include "swizzle.cuh"
#include "tma.cuh"
#include "types.cuh"
#include "wgmma.cuh"

// The maps of one tensor: boxes of 64, 32 and 16 columns, swizzled over 128, 64 and 32 bytes; null for widths that no
// panel has.
struct PanelMaps {
  TensorMap const *columns64, *columns32, *columns16;

  __device__ __forceinline__ TensorMap const* of(int width) const {
    return width == 64 ? columns64 : width == 32 ? columns32 : columns16;
  }
};

// kCols columns as panels of at most kWidest columns, the widest first. kUniform: all panels have kWidest columns, so
// that one wgmma spans them; TMA fills columns beyond the tensor with zeros. Closed forms are intentional: a loop in a
// constexpr function is not folded when the caller's loop is unrolled, and leaves run-time branches between the wgmmas
// of a group.
template <int kCols, int kWidest, bool kUniform>
struct Panels {
  static constexpr int k64 = kWidest < 64 ? 0 : kUniform ? (kCols + 63) / 64 : kCols / 64;
  static constexpr int kAfter64 = kCols > 64 * k64 ? kCols - 64 * k64 : 0;
  static constexpr int k32 = kWidest < 32 ? 0 : kUniform ? (kAfter64 + 31) / 32 : kAfter64 / 32;
  static constexpr int kAfter32 = kAfter64 > 32 * k32 ? kAfter64 - 32 * k32 : 0;
  static constexpr int k16 = (kAfter32 + 15) / 16;
  static constexpr int kCount = k64 + k32 + k16;
  static constexpr int kColumns = 64 * k64 + 32 * k32 + 16 * k16;
  static constexpr int kWidths = 64 * (k64 > 0) + 32 * (k32 > 0) + 16 * (k16 > 0);  // sum of the widths in use

  static constexpr __host__ __device__ int width(int panel) { return panel < k64 ? 64 : panel < k64 + k32 ? 32 : 16; }
  static constexpr __host__ __device__ int column(int panel) {  // first column of a panel
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
  // Bytes of a tile, padded to the alignment of the next tile's swizzle.
  static constexpr __host__ __device__ int bytes(int rows) { return (2 * kColumns * rows + 1023) / 1024 * 1024; }
  static constexpr __host__ __device__ int loaded_bytes(int rows) { return 2 * kColumns * rows; }

  // Byte offset in a tile of `rows` rows; pairs of elements stay adjacent.
  static constexpr __host__ __device__ uint32_t offset(int rows, int row, int col) {
    int const panel = holding(col), columns = width(panel);
    return 2 * rows * column(panel) + swizzled(2 * (row * columns + col - column(panel)), swizzle(columns));
  }

  // Prefetches the maps for loads and stores, so that copies need not wait for them.
  static __device__ __forceinline__ void prefetch(PanelMaps const& maps) {
    if (k64 > 0) tma_prefetch(maps.columns64);
    if (k32 > 0) tma_prefetch(maps.columns32);
    if (k16 > 0) tma_prefetch(maps.columns16);
  }

  // Loads all panels of kRows rows from `row` on. Each block of a cluster loads a part of the rows, for all.
  template <int kRows, int kCluster = 1>
  static __device__ __forceinline__ void load(uint32_t s_tile, PanelMaps const& maps, uint32_t barrier, int row,
                                              int head, int batch) {
    int const first = kCluster == 1 ? 0 : cluster_rank() * (kRows / kCluster);
    load_piece<kRows, kCluster>(s_tile, maps, barrier, first, row + first, head, batch);
  }
  // Loads the rows of one box, starting at row `first` of the tile, into all blocks of a cluster.
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

  // Descriptor of 16 columns, contiguous in k, from column k on.
  template <int kRows>
  static __device__ __forceinline__ uint64_t k_major(uint32_t s_tile, int k) {
    int const panel = holding(k), columns = width(panel);
    uint64_t const tile = wgmma_descriptor(s_tile, 16, 16 * columns, swizzle(columns));
    return wgmma_advance(tile, 2 * kRows * column(panel) + 2 * (k - column(panel)));
  }
  // Descriptor of 16 rows from row k on of the panels of equal width that start at `col`, transposed.
  template <int kRows>
  static __device__ __forceinline__ uint64_t mn_major(uint32_t s_tile, int k, int col) {
    int const columns = width(holding(col));
    uint64_t const tile = wgmma_descriptor(s_tile, 2 * columns * kRows, 16 * columns, swizzle(columns));
    return wgmma_advance(tile, 2 * kRows * col + 2 * columns * k);
  }
};
