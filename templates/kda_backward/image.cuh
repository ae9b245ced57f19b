// What prepare hands on for one chunk of 16 tokens of one head: the forward scan copies its first part to shared
// memory, the reverse scan nearly all of it, the gradients read the rest.
#pragma once
#include "flash_attention/rows.cuh"

constexpr int kChunk = 16;  // tokens

// Byte offsets. Tiles are [kChunk, K] bf16 in the layout Rows; decay is fp32, so ordered that each lane finds the four
// channels of its accumulators together. Blocks of 16 × 16 lie in the order of one operand, 16 bytes a lane.
template <int K>
struct Image {
  static_assert(K % 16 == 0, "tiles are whole operands of mma");
  using Rows = ::Rows<K, true>;
  static constexpr int kTileBytes = kChunk * K * 2;
  static constexpr int kBlockBytes = 512;
  static constexpr int kKeys = 0;                              // -k e^G
  static constexpr int kUpdates = kTileBytes;                  // Tᵀ (k e^(G_last - G))
  static constexpr int kDecay = 2 * kTileBytes;                // e^G_last
  static constexpr int kBeta = kDecay + 4 * K;
  static constexpr int kForwardBytes = (kBeta + 4 * kChunk + 127) / 128 * 128;
  static constexpr int kQueries = kForwardBytes;               // scale q e^G
  static constexpr int kOutput = kQueries + kTileBytes;        // P T as operand B
  static constexpr int kReverseBytes = kOutput + kBlockBytes;
  static constexpr int kErrors = kReverseBytes;                // (I + L diag(beta))^-1 as operand A
  static constexpr int kLengths = kErrors + kBlockBytes;       // inverse, of the rows of q, then of k; with kNormalize
  static constexpr int kBytes = kLengths + 8 * kChunk;

  // Byte offset of the decay of the channels 2 pair and 2 pair + 1.
  static __device__ __forceinline__ int decay(int pair) {
    return kDecay + pair / 8 * 64 + pair % 4 * 16 + pair / 4 % 2 * 8;
  }
};
