// The output of prep for scan for one chunk of C tokens of one head: an image that is copied to shared memory
// unchanged.
#pragma once
#include "kda/chunks/bf16.cuh"

// Byte offsets. Tiles of keys and queries are [C, K] in the layout Operands::ImageRows, updates in that of
// Operands::Folds; decay is fp32, ordered so that each lane finds the four channels of its accumulators together.
template <int K, int C, class Operands = Bf16Operands>
struct Image {
  static_assert(K % 16 == 0 && (C == 16 || C == 32), "tiles are whole operands of mma");
  static constexpr int kElement = Operands::kBytes;
  using Rows = typename Operands::template ImageRows<K, C>;
  static constexpr int kBlocks = C / 16 * (C / 16 + 1) / 2;  // 16 × 16 blocks in a lower triangle
  static constexpr int kBlockBytes = 256 * kElement;
  static constexpr int kTileBytes = C * K * kElement;
  static constexpr int kKeys = 0;                            // -k e^G
  static constexpr int kQueries = Rows::kTileStep;           // scale q e^G
  static constexpr int kUpdates = 2 * Rows::kTileStep;       // T'ᵀ (k e^(G_last - G))
  static constexpr int kOutput = 3 * kTileBytes;             // P T', blocks in the order of operand B
  static constexpr int kDecay = kOutput + kBlockBytes * kBlocks;  // e^G_last
  static constexpr int kUsedBytes = kDecay + 4 * K;
  static constexpr int kBytes = (kUsedBytes + 127) / 128 * 128;

  static constexpr __device__ int block(int i, int j) { return i * (i + 1) / 2 + j; }
  // Byte offset in a tile of the channels from 4 quad on of a row.
  static __device__ __forceinline__ uint32_t offset(uint32_t row, uint32_t quad) {
    constexpr uint32_t kQuads = 4 / kElement;  // quads of a chunk
    return Rows::offset(row, quad / kQuads) + quad % kQuads * (4 * kElement);
  }
  // Stores the decay of the channels from 4 quad on, in an order that spreads a warp's stores over all banks.
  static __device__ __forceinline__ void store_decay(unsigned char* image, uint32_t quad, float const (&x)[4]) {
    uint32_t const turn = quad / 8 % 4, at = Operands::decay(quad % 4 * 4) ^ Operands::decay(turn);
    bool const halves = turn / 2, neighbours = turn % 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) {  // element e ^ turn; decay permutes bits, so an XOR commutes with it
      float const even = halves ? x[e & 2 ^ 2] : x[e & 2], odd = halves ? x[e & 2 ^ 3] : x[e & 2 | 1];
      *reinterpret_cast<float*>(image + kDecay + quad / 4 * 64 + (at ^ Operands::decay(e))) =
          neighbours == (e % 2 == 0) ? odd : even;
    }
  }
};
