// An image that wgmma reads: operands in bf16, rows of keys and queries, and updates, in panels of 64 channels.
#pragma once
#include "kda/chunks/bf16.cuh"

// Panel p of a tile of C rows: 64 channels, 128 bytes per row, with the swizzle of wgmma. The panels of keys, queries
// and updates with the same channels are adjacent, so that keys and queries are one operand of 2 C columns.
template <int K, int C>
struct PanelRows {
  static_assert(K % 64 == 0, "a panel is 64 channels");
  static constexpr int kRowBytes = 128;
  static constexpr int kTileStep = C * kRowBytes;       // distance between panels of adjacent tiles
  static constexpr int kPanelStep = 3 * kTileStep;      // distance between panels of the same tile

  static __device__ __forceinline__ uint32_t offset(uint32_t row, uint32_t chunk) {
    return chunk / 8 * kPanelStep + row * kRowBytes + 16 * (chunk % 8 ^ row % 8);
  }
  // The address of chunk c + k, from that of chunk c in the same row. c and k have no bit in common.
  static __device__ __forceinline__ uint32_t advance(uint32_t address, int k) {
    return (address ^ k % 8 * 16) + k / 8 * kPanelStep;
  }
};

struct PanelOperands : Bf16Operands {
  template <int K, int C>
  using ImageRows = PanelRows<K, C>;
  template <int K, int C>
  using Folds = Bf16Operands::Folds<K, C, PanelRows<K, C>>;
};
