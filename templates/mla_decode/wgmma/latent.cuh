// The tile of a block on wgmma: 64 rows of Q against BN latent rows. Both warpgroups have all rows; each computes the
// scores of half of the keys, and half of O's columns. Q, the latent rows and P are stored as wgmma reads them: panels
// of 64 columns, swizzled over their 128 bytes.
#pragma once
#include "fence.cuh"
#include "flash_attention/tile.cuh"
#include "flash_attention/panels/panels.cuh"
#include "register.cuh"

// kRows rows of D elements as panels, with the layout constants that RowCopies requires.
template <int D, int kRows>
struct PanelRows {
  static_assert(D % 64 == 0, "panels have 64 columns");
  static constexpr int kChunks = D / 8;
  static constexpr int kRowBytes = 128;              // distance between rows of a panel
  static constexpr int kSpanBytes = 128 * kRows;     // distance between panels
  static constexpr int kTileBytes = 2 * D * kRows;
  static __device__ __forceinline__ uint32_t offset(uint32_t row, uint32_t chunk) {
    return chunk / 8 * kSpanBytes + swizzled(row * kRowBytes + chunk % 8 * 16, Swizzle::k128B);
  }
};

// Constants that follow from the traits of a kernel: T, D, DV, BN, kStages, kHeld, kLate. A warp has its rows, and its
// part of P and O, like the warps of Latent.
template <class Traits>
struct WgmmaLatent : Traits {
  static constexpr int BM = 64, kWarps = 8, kParts = 2, kThreads = 256;
  static constexpr int kRows = 16, kM = 1;
  static constexpr int kKeys = Traits::BN / kParts;
  static constexpr int kN = Traits::DV / 8 / kParts;
  using Layout = PanelRows<Traits::D, Traits::BN>;
  using LayoutQ = PanelRows<Traits::D, BM>;
  using LayoutP = Rows<Traits::BN, true>;
  using LayoutO = Rows<Traits::DV, true>;
  static_assert(Traits::BN == 64 || Traits::BN == 32, "P is one panel, swizzled over its row");
  static_assert(Traits::DV % 128 == 0, "a warpgroup makes whole panels of O's columns");
  static_assert(kN * 8 <= 256, "a wgmma has up to 256 columns");
  static_assert(Traits::kHeld % 16 == 0 && Traits::kHeld <= Traits::D, "whole steps of 16 columns");
  static_assert(Traits::kLate % 16 == 0 && Traits::kLate > 0 && Traits::kLate < Traits::BN, "whole steps of 16 rows");

  static constexpr int kQuery = 0;
  static constexpr int kTileBytes = Layout::kTileBytes;
  static constexpr int kRing = LayoutQ::kTileBytes;
  static constexpr int kP = kRing + Traits::kStages * kTileBytes;
  static constexpr int kRowValues = kP + BM * LayoutP::kRowBytes;
  static constexpr int kSharedBytes = kRowValues + kParts * BM * 4;
  static_assert(kRing % 1024 == 0 && kTileBytes % 1024 == 0, "swizzled panels begin where their swizzle does");

  static __device__ __forceinline__ BlockCoord coord() {
    int const warp = threadIdx.x / 32;
    return {0, 0, 0, int(threadIdx.x % 32), warp / 4, warp % 4 * kRows};
  }
  static __device__ __forceinline__ int column(int n, int part) { return (part * kN + n) * 8; }
  static __device__ __forceinline__ void arrived() { fence_proxy_async(); }
};
