// The tile of a block: BM rows of Q against BN latent rows of D elements; each is a key, and its first DV elements are
// a value. kParts warps share 16 or 32 rows of Q: each multiplies a part of the keys, and then, since P is exchanged
// through shared memory, all keys for a part of O's columns.
#pragma once
#include "flash_attention/tile.cuh"

// Rows in shared memory with the layout constants that RowCopies requires: bytes from 8 chunks of a row to the next 8.
template <int D>
struct LatentRows : Rows<D, true> {
  static constexpr int kSpanBytes = 128;
};

// Constants that follow from the traits of a kernel: T, D, DV, BM, BN, kWarps, kParts, kStages.
template <class Traits>
struct Latent : Traits {
  using Layout = LatentRows<Traits::D>;  // layout of the latent rows
  using LayoutQ = Layout;
  using LayoutP = Rows<Traits::BN, true>;
  using LayoutO = Rows<Traits::DV, true>;
  static constexpr int kThreads = 32 * Traits::kWarps;
  static constexpr int kRows = Traits::BM / (Traits::kWarps / Traits::kParts);  // rows per warp
  static constexpr int kM = kRows / 16;
  static constexpr int kKeys = Traits::BN / Traits::kParts;   // keys whose scores a warp computes
  static constexpr int kN = Traits::DV / 8 / Traits::kParts;  // 8-wide column tiles of O per warp
  static_assert(kRows % 16 == 0 && kRows * (Traits::kWarps / Traits::kParts) == Traits::BM,
                "a warp owns whole mma tiles of 16 rows");
  static_assert(kKeys % 8 == 0 && kKeys * Traits::kParts == Traits::BN, "a warp scores whole mma tiles of 8 keys");
  static_assert(kN % 2 == 0 && kN * 8 * Traits::kParts == Traits::DV, "warps own whole pairs of column tiles of O");
  static_assert(Traits::BN % 16 == 0, "P V takes 16 keys a step");

  // Byte offsets in shared memory: Q, later O; the ring of latent rows; P; one float per row and part.
  static constexpr int kQuery = 0;
  static constexpr int kTileBytes = Traits::BN * Layout::kRowBytes;
  static constexpr int kRing = Traits::BM * Layout::kRowBytes;
  static constexpr int kP = kRing + Traits::kStages * kTileBytes;
  static constexpr int kRowValues = kP + Traits::BM * LayoutP::kRowBytes;
  static constexpr int kSharedBytes = kRowValues + (Traits::kParts > 1 ? Traits::kParts * Traits::BM * 4 : 0);

  static constexpr int kLate = 0;  // rows of a tile that are used longer than the others

  // This thread's coordinates in the tile.
  static __device__ __forceinline__ BlockCoord coord() {
    int const warp = threadIdx.x / 32;
    return {0, 0, 0, int(threadIdx.x % 32), warp % Traits::kParts, warp / Traits::kParts * kRows};
  }
  // The first of the 8 columns of O of a warp's column tile n.
  static __device__ __forceinline__ int column(int n, int part) {
    return ((n / 2 * Traits::kParts + part) * 2 + n % 2) * 8;
  }
  // Called by a thread after its copies have completed, before the barrier.
  static __device__ __forceinline__ void arrived() {}
};
