// What prep hands to scan for one chunk of C tokens of one head: an image that lands in shared memory as it is.
#pragma once
#include "flash_attention/rows.cuh"

// Byte offsets. Tiles are [C, K] bf16 in the layout Rows; decay is fp32, so ordered that each lane finds the four
// channels of its accumulators together.
template <int K, int C>
struct Image {
  static_assert(K % 16 == 0 && (C == 16 || C == 32), "tiles are whole operands of mma");
  using Rows = ::Rows<K, true>;
  static constexpr int kBlocks = C / 16 * (C / 16 + 1) / 2;  // of 16 × 16, of a lower triangle
  static constexpr int kTileBytes = C * K * 2;
  static constexpr int kKeys = 0;                            // -k e^G
  static constexpr int kQueries = kTileBytes;                // scale q e^G
  static constexpr int kUpdates = 2 * kTileBytes;            // T'ᵀ (k e^(G_last - G))
  static constexpr int kOutput = 3 * kTileBytes;             // P T', blocks in the order of operand B
  static constexpr int kDecay = kOutput + 512 * kBlocks;     // e^G_last
  static constexpr int kUsedBytes = kDecay + 4 * K;
  static constexpr int kBytes = (kUsedBytes + 127) / 128 * 128;

  static constexpr __device__ int block(int i, int j) { return i * (i + 1) / 2 + j; }
  // Byte offset of the decay of the channels 2 pair and 2 pair + 1.
  static __device__ __forceinline__ int decay(int pair) {
    return kDecay + pair / 8 * 64 + pair % 4 * 16 + pair / 4 % 2 * 8;
  }
};
