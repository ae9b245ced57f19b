// The tile of a block: BM rows of Q against BN keys, D wide, whose values are DV wide. Warps compute 16 or 32 rows
// each; kParts warps may share rows: each then computes a part of the keys for Q Kᵀ and a part of DV for P V, and P is
// exchanged through shared memory.
#pragma once
#include "flash_attention/products.cuh"
#include "flash_attention/ring_slots.cuh"
#include "flash_attention/value_width.cuh"
#include "thread.cuh"

// Constants that follow from the traits of a kernel: T, D, DV, BM, BN, kWarps, kParts, kStages, kSwizzle, kQueryInRing.
template <class Traits>
struct Tile : Traits {
  static constexpr int DV = ValueWidth<Traits>::value;
  static constexpr int kWidth = sizeof(typename Traits::T) / 2;  // size of an element in units of 16 bits
  using Layout = Rows<Traits::D * kWidth, Traits::kSwizzle>;     // layout of Q and K in shared memory
  using LayoutV = Rows<DV * kWidth, Traits::kSwizzle>;
  using LayoutO = LayoutV;
  using LayoutP = Rows<Traits::BN * kWidth, true>;
  static constexpr int kThreads = 32 * Traits::kWarps;
  static constexpr int kRows = Traits::BM / (Traits::kWarps / Traits::kParts);  // rows per warp
  static constexpr int kM = kRows / 16;                                         // mma tiles of these rows
  static constexpr int kKeys = Traits::BN / Traits::kParts;                     // keys whose scores a warp computes
  static constexpr int kN = DV / 8 / Traits::kParts;                            // 8-wide column tiles of O per warp
  static_assert(kRows % 16 == 0 && kRows * (Traits::kWarps / Traits::kParts) == Traits::BM,
                "a warp owns whole mma tiles of 16 rows");
  static_assert(kKeys % (16 / kWidth) == 0, "P V takes 16 keys a step, or 8 of 32 bits");
  static_assert(Traits::kParts == 1 || kN % 2 == 0, "warps that share rows own whole pairs of column tiles of O");

  // Byte offsets in shared memory: Q; the ring of K and V; P; one float per row and part. At the end O reuses the space
  // of Q.
  static constexpr int kQuery = 0;
  static constexpr int kKeyBytes = Traits::BN * Layout::kRowBytes, kValueBytes = Traits::BN * LayoutV::kRowBytes;
  static constexpr int kQueryBytes = Traits::BM * Layout::kRowBytes;
  // 32-bit elements are stored from registers
  static constexpr int kOutputBytes = kWidth == 1 ? Traits::BM * LayoutV::kRowBytes : 0;
  static constexpr int kRingBytes = RingSlots<Traits::kStages, kKeyBytes, kValueBytes>::kBytes;
  static constexpr int kRing = Traits::kQueryInRing ? 0 : kQueryBytes;
  static constexpr int kLoaded = kQueryBytes > kRing + kRingBytes ? kQueryBytes : kRing + kRingBytes;
  static constexpr int kP = kOutputBytes > kLoaded ? kOutputBytes : kLoaded;
  static constexpr int kRowValues = kP + (Traits::kParts > 1 ? Traits::BM * LayoutP::kRowBytes : 0);
  static constexpr int kSharedBytes = kRowValues + (Traits::kParts > 1 ? Traits::kParts * Traits::BM * 4 : 0);

  // The first of the 8 columns of O of a warp's column tile n.
  static __device__ __forceinline__ int column(int n, int part) {
    return ((n / 2 * Traits::kParts + part) * 2 + n % 2) * 8;
  }
};

// This thread's coordinates in the grid and in the tile.
struct BlockCoord {
  int row0, head, batch;     // row0: the block's first row of Q
  int lane, part, warp_row;  // warp_row: the warp's first row within the block
};

template <class Tile>
__device__ __forceinline__ BlockCoord locate(int row_tile) {
  int const warp = threadIdx.x / 32;
  return {row_tile * Tile::BM,   int(blockIdx.y),      int(blockIdx.z),
          int(threadIdx.x % 32), warp % Tile::kParts, warp / Tile::kParts * Tile::kRows};
}

// Synchronizes the warps that share rows.
template <class Tile>
__device__ __forceinline__ void sync_parts(BlockCoord const& at) {
  if constexpr (Tile::kParts > 1)
    named_barrier_sync(1 + at.warp_row / Tile::kRows, 32 * Tile::kParts);
  else
    __syncwarp();
}

// Each row's sum, or maximum, over the warps that share it.
template <class Tile, bool kSum>
__device__ __forceinline__ void reduce_parts(float (&value)[Tile::kM][2], unsigned char* smem, BlockCoord const& at) {
  if constexpr (Tile::kParts > 1) {
    float* s_values = reinterpret_cast<float*>(smem + Tile::kRowValues) + at.warp_row + at.lane / 4;
#pragma unroll
    for (int i = 0; i < 2 * Tile::kM; ++i)
      if (at.lane % 4 == 0) s_values[at.part * Tile::BM + i * 8] = value[i / 2][i % 2];
    sync_parts<Tile>(at);
#pragma unroll
    for (int i = 0; i < 2 * Tile::kM; ++i)
#pragma unroll
      for (int other = 1; other < Tile::kParts; ++other) {
        float const theirs = s_values[(at.part ^ other) * Tile::BM + i * 8];
        value[i / 2][i % 2] = kSum ? value[i / 2][i % 2] + theirs : fmaxf(value[i / 2][i % 2], theirs);
      }
  }
}

// Stores P of this warp's kMine keys from registers to the tile shared by the warps of its rows. They read it after a
// barrier.
template <class Tile, int kMine>
__device__ __forceinline__ void share_p(unsigned char* smem, uint32_t const (*r_p)[Tile::kM][4], BlockCoord const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i)
#pragma unroll
    for (int n = 0; n < kMine / 8; ++n) {
      int const row = at.warp_row + i * 8 + at.lane / 4, chunk = at.part * (kMine / 8) + n;
      uint32_t const offset = Tile::LayoutP::offset(row, chunk) + at.lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(smem + Tile::kP + offset) = r_p[n / 2][i / 2][n % 2 * 2 + i % 2];
    }
}

// r_o += P V for kTaken keys. `p` and `v`: this lane's addresses of the shared P, from rows_first, and of V, at its
// part of DV.
template <class Tile, int kTaken>
__device__ __forceinline__ void accumulate_keys(float (&r_o)[Tile::kM][Tile::kN][4],
                                                uint32_t const (&r_p)[Tile::kKeys / 16][Tile::kM][4], uint32_t p,
                                                uint32_t v) {
  using Layout = typename Tile::LayoutV;
#pragma unroll
  for (int step = 0; step < kTaken / 16; ++step) {
    if constexpr (Tile::kParts == 1) {
      accumulate<typename Tile::T, Layout, 1>(r_o, r_p[step], v, step * 16 * Layout::kRowBytes);
    } else {
      uint32_t r_shared[Tile::kM][4];
#pragma unroll
      for (int m = 0; m < Tile::kM; ++m)
        ldmatrix<4>(r_shared[m], Tile::LayoutP::advance(p, 2 * step) + m * 16 * Tile::LayoutP::kRowBytes);
      accumulate<typename Tile::T, Layout, Tile::kParts>(r_o, r_shared, v, step * 16 * Layout::kRowBytes);
    }
  }
}
