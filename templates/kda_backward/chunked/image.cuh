// The output of prepare for one chunk of 16 tokens of one head: the forward scan copies its first part to shared
// memory, the reverse scan nearly all of it, and gradients reads the small parts.
#pragma once
#include "kda_backward/chunked/bf16.cuh"
#include "kda_backward/chunked/tf32.cuh"

// Byte offsets. Matrices are [kChunk, K], for operands that are rows or columns of it, stored once if one layout serves
// both; decay is fp32, ordered so that each lane finds the four channels of its accumulators together.
template <int K, class Operands>
struct Image {
  static_assert(K % 16 == 0, "matrices are whole operands of mma");
  static constexpr int kMatrixBytes = Operands::template Matrix<K>::kBytes;
  static constexpr int kBlockBytes = 16 * Operands::kBlock;
  static constexpr int kErrors = 0;                              // (I + L diag(beta))^-1, a block
  static constexpr int kKeyRows = kBlockBytes;                   // -k e^G
  static constexpr int kUpdateColumns = kKeyRows + kMatrixBytes;  // Tᵀ (k e^(G_last - G))
  static constexpr int kDecay = kUpdateColumns + kMatrixBytes;    // e^G_last
  static constexpr int kBeta = kDecay + 4 * K;
  static constexpr int kForwardBytes = (kBeta + 4 * kChunk + 127) / 128 * 128;
  static constexpr int kQueryColumns = kForwardBytes;           // scale q e^G
  static constexpr int kOutput = kQueryColumns + kMatrixBytes;  // (P T)ᵀ, a block
  static constexpr int kOutputEnd = kOutput + kBlockBytes;
  static constexpr int kKeyColumns = Operands::kTwice ? kOutputEnd : kKeyRows;
  static constexpr int kUpdateRows = Operands::kTwice ? kKeyColumns + kMatrixBytes : kUpdateColumns;
  static constexpr int kReverseFirst = Operands::kTwice ? kDecay : kKeyRows;
  static constexpr int kReverseBytes = (Operands::kTwice ? kUpdateRows + kMatrixBytes : kOutputEnd) - kReverseFirst;
  // inverse norms of the rows of q, then of k; with kNormalize
  static constexpr int kLengths = kReverseFirst + kReverseBytes;
  static constexpr int kBytes = kLengths + 8 * kChunk;

  // Byte offset of the decay of the channels 2 pair and 2 pair + 1.
  static __device__ __forceinline__ int decay(int pair) {
    return kDecay + pair / 8 * 64 + pair % 4 * 16 + pair / 4 % 2 * 8;
  }
};
