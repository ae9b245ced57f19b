// The tile of a block: BM rows of Q against BN latent rows of D elements, each a key and, in its first DV elements, a
// value. kParts warps share 16 or 32 rows of Q: each multiplies a part of the keys, and then, since P passes through
// shared memory, all keys for a part of O's columns.
#pragma once
#include "flash_attention/tile.cuh"

// What follows from a kernel's choices: T, D, DV, BM, BN, kWarps, kParts, kStages.
template <class Choice>
struct Latent : Choice {
  using Layout = Rows<Choice::D, true>;  // of Q and the latent rows
  using LayoutP = Rows<Choice::BN, true>;
  using LayoutO = Rows<Choice::DV, true>;  // of O, which in the end takes Q's place
  static constexpr int kThreads = 32 * Choice::kWarps;
  static constexpr int kRows = Choice::BM / (Choice::kWarps / Choice::kParts);  // of a warp
  static constexpr int kM = kRows / 16;
  static constexpr int kKeys = Choice::BN / Choice::kParts;       // whose scores a warp computes
  static constexpr int kN = Choice::DV / 8 / Choice::kParts;      // 8-wide column tiles of O of a warp
  static_assert(kRows % 16 == 0 && kRows * (Choice::kWarps / Choice::kParts) == Choice::BM,
                "a warp owns whole mma tiles of 16 rows");
  static_assert(kKeys % 8 == 0 && kKeys * Choice::kParts == Choice::BN, "a warp scores whole mma tiles of 8 keys");
  static_assert(kN % 2 == 0 && kN * 8 * Choice::kParts == Choice::DV, "warps own whole pairs of column tiles of O");
  static_assert(Choice::BN % 16 == 0, "P V takes 16 keys a step");

  // Byte offsets in shared memory: Q; the ring of latent rows; P; a float a row and part.
  static constexpr int kTileBytes = Choice::BN * Layout::kRowBytes;
  static constexpr int kRing = Choice::BM * Layout::kRowBytes;
  static constexpr int kP = kRing + Choice::kStages * kTileBytes;
  static constexpr int kRowValues = kP + Choice::BM * LayoutP::kRowBytes;
  static constexpr int kSharedBytes = kRowValues + (Choice::kParts > 1 ? Choice::kParts * Choice::BM * 4 : 0);
};

template <class Tile>
__device__ __forceinline__ Place locate_in_block() {
  int const warp = threadIdx.x / 32;
  return {0, 0, 0, int(threadIdx.x % 32), warp % Tile::kParts, warp / Tile::kParts * Tile::kRows};
}
