// The work of a block of flash_attention on tcgen05, and the layout of its tiles, barriers and columns of tensor
// memory.
#pragma once
#include "block_registers.cuh"
#include "flash_attention/panels/tile.cuh"
#include "tcgen05.cuh"

// Tiles of kRows queries, with one lane of tensor memory per row. Each of the kWarpgroups warpgroups processes one; in
// an additional one, a warp loads and a warp issues products. It cedes registers to the others.
template <class Traits>
struct Tcgen05Tile : Traits {
  using Traits::BN;
  using Traits::D;
  using Traits::kStages;
  using Traits::kValueColumns;
  static constexpr int DV = ValueWidth<Traits>::value;
  static constexpr int D16 = (D + 15) / 16 * 16, DV16 = (DV + 15) / 16 * 16;  // products consume 16 columns per step
  static constexpr int kRows = 128;
  static constexpr int kWarpgroups = Traits::kRowTiles;
  static constexpr int BM = kRows * kWarpgroups;
  static constexpr int kConsumers = 128 * kWarpgroups, kThreads = kConsumers + 128;
  static constexpr int kLoaderWarp = kConsumers / 32, kProductsWarp = kLoaderWarp + 1;
  static constexpr int kBlocksPerSM = kWarpgroups == 1 ? 2 : 1;  // blocks per SM, limited by registers
  static constexpr int kConsumerRegisters = kWarpgroups == 1 ? 192 : 208, kIssuerRegisters = kWarpgroups == 1 ? 64 : 88;
  static constexpr int kCluster = 1;
  static constexpr bool kClusterOfHeads = false;
  static constexpr bool kUniform = kValueColumns != 0;

  using Rows = Panels<D16, 64, false>;  // panels of Q and K
  using Values = Panels<DV16, kUniform ? kValueColumns : 64, kUniform>;
  using Outputs = Panels<DV16, 64, false>;  // panels of O, in the shared memory of Q
  static constexpr int kQueryBytes =
      Rows::bytes(kRows) > Outputs::bytes(kRows) ? Rows::bytes(kRows) : Outputs::bytes(kRows);
  static constexpr int kKeyBytes = Rows::bytes(BN), kValueBytes = Values::bytes(BN);
  static constexpr int kKeys = kWarpgroups * kQueryBytes;
  static constexpr int kValues = kKeys + kStages * kKeyBytes;
  static constexpr int kBarriers = kValues + kStages * kValueBytes;
  // the address of tensor memory is stored here
  static constexpr int kTensor = kBarriers + 8 * (6 * kWarpgroups + 4 * kStages);
  static constexpr int kWork = kTensor + 16;
  static constexpr int kSharedBytes = kWork + int(sizeof(Work));

  // Columns of tensor memory: O of all row tiles, then their scores, then P, with two 16-bit keys per column; or P over
  // the scores that it was computed from.
  static constexpr bool kOverlaid = Traits::kOverlaid;
  static constexpr int kScores = kWarpgroups * DV16, kProbabilities = kOverlaid ? kScores : kScores + kWarpgroups * BN;
  static constexpr int kProbabilityColumns = kOverlaid ? BN : BN / 2;  // distance between row tiles
  static constexpr int kUsedColumns = kProbabilities + kWarpgroups * kProbabilityColumns;
  static constexpr int kColumns = kUsedColumns <= 64    ? 64
                                  : kUsedColumns <= 128 ? 128
                                  : kUsedColumns <= 256 ? 256
                                                        : 512;

  static_assert(kConsumers * kConsumerRegisters + 128 * kIssuerRegisters <= block_registers(kThreads, kBlocksPerSM),
                "setmaxnreg would deadlock");
  static_assert(kUsedColumns <= 512, "tensor memory has 512 columns");
  static_assert(D % 8 == 0 && D >= 16 && D <= 256, "the head_dim is a multiple of 8 from 16 to 256");
  static_assert(DV % 8 == 0 && DV >= 8 && DV <= 256, "values are a multiple of 8 wide, from 8 to 256");
  static_assert(BN % 16 == 0 && BN >= 32 && BN <= 128, "a tile holds 32 to 128 keys in steps of 16");
};

// Barriers in shared memory. Per row tile: Q has arrived, and its memory is free; the scores of a tile of keys are
// complete, and have been read; P is stored, and O includes it. Per stage of K and V: full and empty.
template <class Traits>
struct Barriers<Tcgen05Tile<Traits>> {
  using Tile = Tcgen05Tile<Traits>;
  uint32_t base;

  __device__ __forceinline__ uint32_t query_full(int i) const { return of(0, i); }
  __device__ __forceinline__ uint32_t query_empty(int i) const { return of(1, i); }
  __device__ __forceinline__ uint32_t scores_full(int i) const { return of(2, i); }
  __device__ __forceinline__ uint32_t scores_read(int i) const { return of(3, i); }
  __device__ __forceinline__ uint32_t probabilities_full(int i) const { return of(4, i); }
  __device__ __forceinline__ uint32_t output_full(int i) const { return of(5, i); }
  __device__ __forceinline__ uint32_t keys_full(int stage) const { return at(0, stage); }
  __device__ __forceinline__ uint32_t keys_empty(int stage) const { return at(1, stage); }
  __device__ __forceinline__ uint32_t values_full(int stage) const { return at(2, stage); }
  __device__ __forceinline__ uint32_t values_empty(int stage) const { return at(3, stage); }

  __device__ __forceinline__ uint32_t of(int kind, int i) const { return base + 8 * (kind * Tile::kWarpgroups + i); }
  __device__ __forceinline__ uint32_t at(int kind, int stage) const { return of(6, 0) + 8 * (kind * Tile::kStages + stage); }
};

// Called by one thread; a barrier of the block must follow. Warps arrive for data that they have read or written,
// products by commit.
template <class Traits>
__device__ __forceinline__ void init_barriers(Barriers<Tcgen05Tile<Traits>> const& barriers) {
  using Tile = Tcgen05Tile<Traits>;
  for (int i = 0; i < Tile::kWarpgroups; ++i) {
    mbarrier_init(barriers.query_full(i), 1);
    mbarrier_init(barriers.query_empty(i), 1);
    mbarrier_init(barriers.scores_full(i), 1);
    mbarrier_init(barriers.scores_read(i), 4);
    mbarrier_init(barriers.probabilities_full(i), 4);
    mbarrier_init(barriers.output_full(i), 1);
  }
  for (int s = 0; s < Tile::kStages; ++s) {
    mbarrier_init(barriers.keys_full(s), 1);
    mbarrier_init(barriers.keys_empty(s), 1);
    mbarrier_init(barriers.values_full(s), 1);
    mbarrier_init(barriers.values_empty(s), 1);
  }
  fence_mbarrier_init();
}
