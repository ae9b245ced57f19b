// What prep hands to scan for one chunk of C tokens of one head: an image that lands in shared memory as it is.
#pragma once
#include "kda/bf16.cuh"

// Byte offsets. Tiles of keys and queries are [C, K] in the layout Rows, updates as Operands::Folds has them; decay is
// fp32, so ordered that each lane finds the four channels of its accumulators together.
template <int K, int C, class Operands = Bf16Operands>
struct Image {
  static_assert(K % 16 == 0 && (C == 16 || C == 32), "tiles are whole operands of mma");
  static constexpr int kElement = Operands::kBytes;
  using Rows = ::Rows<K * kElement / 2, true>;
  static constexpr int kBlocks = C / 16 * (C / 16 + 1) / 2;  // of 16 × 16, of a lower triangle
  static constexpr int kBlockBytes = 256 * kElement;
  static constexpr int kTileBytes = C * K * kElement;
  static constexpr int kKeys = 0;                            // -k e^G
  static constexpr int kQueries = kTileBytes;                // scale q e^G
  static constexpr int kUpdates = 2 * kTileBytes;            // T'ᵀ (k e^(G_last - G))
  static constexpr int kOutput = 3 * kTileBytes;             // P T', blocks in the order of operand B
  static constexpr int kDecay = kOutput + kBlockBytes * kBlocks;  // e^G_last
  static constexpr int kUsedBytes = kDecay + 4 * K;
  static constexpr int kBytes = (kUsedBytes + 127) / 128 * 128;

  static constexpr __device__ int block(int i, int j) { return i * (i + 1) / 2 + j; }
  // Byte offset in a tile of the channels 2 pair and 2 pair + 1 of a row.
  static __device__ __forceinline__ uint32_t offset(int row, int pair) {
    constexpr int kPairs = 8 / kElement;  // a chunk
    return Rows::offset(row, pair / kPairs) + pair % kPairs * (2 * kElement);
  }
  // The decay of the channels 2 pair and 2 pair + 1.
  static __device__ __forceinline__ void store_decay(unsigned char* image, int pair, float2 x) {
    unsigned char* p = image + kDecay + pair / 8 * 64 + Operands::decay(pair % 8 * 2);
    if constexpr (Operands::decay(1) == 4) {
      *reinterpret_cast<float2*>(p) = x;
    } else {
      *reinterpret_cast<float*>(p) = x.x;
      *reinterpret_cast<float*>(p + Operands::decay(1)) = x.y;
    }
  }
};
