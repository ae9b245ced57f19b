// The tile of a block: BM rows of Q against BN latent rows of D elements, each a key and, in its first DV elements, a
// value. kParts warps share 16 or 32 rows of Q: each multiplies a part of the keys, and then, since P passes through
// shared memory, all keys for a part of O's columns.
#pragma once
#include "flash_attention/tile.cuh"

// Rows side by side with what RowCopies asks of a layout: bytes from 8 chunks of a row to the next 8.
template <int D>
struct LatentRows : Rows<D, true> {
  static constexpr int kSpanBytes = 128;
};

// What follows from a kernel's choices: T, D, DV, BM, BN, kWarps, kParts, kStages.
template <class Choice>
struct Latent : Choice {
  using Layout = LatentRows<Choice::D>;  // of the latent rows
  using LayoutQ = Layout;
  using LayoutP = Rows<Choice::BN, true>;
  using LayoutO = Rows<Choice::DV, true>;
  static constexpr int kThreads = 32 * Choice::kWarps;
  static constexpr int kRows = Choice::BM / (Choice::kWarps / Choice::kParts);  // of a warp
  static constexpr int kM = kRows / 16;
  static constexpr int kKeys = Choice::BN / Choice::kParts;   // whose scores a warp computes
  static constexpr int kN = Choice::DV / 8 / Choice::kParts;  // 8-wide column tiles of O of a warp
  static_assert(kRows % 16 == 0 && kRows * (Choice::kWarps / Choice::kParts) == Choice::BM,
                "a warp owns whole mma tiles of 16 rows");
  static_assert(kKeys % 8 == 0 && kKeys * Choice::kParts == Choice::BN, "a warp scores whole mma tiles of 8 keys");
  static_assert(kN % 2 == 0 && kN * 8 * Choice::kParts == Choice::DV, "warps own whole pairs of column tiles of O");
  static_assert(Choice::BN % 16 == 0, "P V takes 16 keys a step");

  // Byte offsets in shared memory: Q, in the end O; the ring of latent rows; P; a float a row and part.
  static constexpr int kQuery = 0;
  static constexpr int kTileBytes = Choice::BN * Layout::kRowBytes;
  static constexpr int kRing = Choice::BM * Layout::kRowBytes;
  static constexpr int kP = kRing + Choice::kStages * kTileBytes;
  static constexpr int kRowValues = kP + Choice::BM * LayoutP::kRowBytes;
  static constexpr int kSharedBytes = kRowValues + (Choice::kParts > 1 ? Choice::kParts * Choice::BM * 4 : 0);

  static constexpr int kLate = 0;  // rows of a tile that are left later than the others

  // This thread's place in the tile.
  static __device__ __forceinline__ Place place() {
    int const warp = threadIdx.x / 32;
    return {0, 0, 0, int(threadIdx.x % 32), warp % Choice::kParts, warp / Choice::kParts * kRows};
  }
  // The first of the 8 columns of O that a warp's column tile n is.
  static __device__ __forceinline__ int column(int n, int part) {
    return ((n / 2 * Choice::kParts + part) * 2 + n % 2) * 8;
  }
  // What a thread does once its copies are there, before it tells the others.
  static __device__ __forceinline__ void arrived() {}
};
