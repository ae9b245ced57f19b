// The work of a block of flash_attention on wgmma, the layout of its tiles and barriers, and the loads of K and V.
#pragma once
#include "block_registers.cuh"
#include "fence.cuh"
#include "flash_attention/value_width.cuh"
#include "flash_attention/panels/panels.cuh"
#include "flash_attention/panels/schedule.cuh"
#include "mbarrier.cuh"

template <class Traits>
struct WgmmaTile : Traits {
  using Traits::BN;
  using Traits::kCluster;
  using Traits::D;
  using Traits::kStages;
  using Traits::kValueColumns;
  using Traits::kWarpgroups;
  static constexpr int DV = ValueWidth<Traits>::value;
  // Q Kᵀ consumes 16 columns per step; TMA fills the last step with zeros.
  static constexpr int D16 = (D + 15) / 16 * 16, DV16 = (DV + 15) / 16 * 16;
  static constexpr int kRows = 64;  // rows of Q per warpgroup
  static constexpr int BM = kRows * kWarpgroups;
  static constexpr int kConsumers = 128 * kWarpgroups, kThreads = kConsumers + 128;
  static constexpr int kRegisters = kConsumers * Traits::kConsumerRegisters + 128 * Traits::kProducerRegisters;
  static constexpr int kPosts = 2;  // work descriptors stored at a time: those of the current and of the next row tile
  static constexpr bool kUniform = kValueColumns != 0;
  // Columns of O that are summed: with panels of several widths, complete panels are multiplied, zeros included.
  static constexpr int kSummed = kUniform ? DV : DV16;
  using Rows = Panels<D16, 64, false>;  // panels of Q and K
  using Values = Panels<kUniform ? DV : DV16, kUniform ? kValueColumns : 64, kUniform>;
  using Outputs = Panels<DV16, 64, false>;  // panels of O, in the shared memory of Q
  static constexpr int kQueryBytes = Rows::bytes(64) > Outputs::bytes(64) ? Rows::bytes(64) : Outputs::bytes(64);
  static constexpr int kKeyBytes = Rows::bytes(BN), kValueBytes = Values::bytes(BN);
  static constexpr int kKeys = kWarpgroups * kQueryBytes;
  static constexpr int kValues = kKeys + kStages * kKeyBytes;
  static constexpr int kBarriers = kValues + kStages * kValueBytes;
  static constexpr int kWork = kBarriers + 8 * (2 * kWarpgroups + 4 * kStages + kPosts + 2);
  static constexpr int kDrawn = kWork + kPosts * int(sizeof(Work));
  static constexpr int kSchedule = kDrawn + int(sizeof(int));
  static constexpr int kSharedBytes = kSchedule + int(sizeof(Schedule<WgmmaTile>));

  static_assert(!Traits::kPackedSequences || !Traits::kPersistent, "the grid says how long packed sequences may be");
  static_assert(!Traits::kForeignValues || kCluster == 1, "a block writes zeros over what follows a sequence's values");
  static_assert(D % 8 == 0 && D >= 16 && D <= 256, "the head_dim is a multiple of 8 from 16 to 256");
  static_assert(DV % 8 == 0 && DV >= 8 && DV <= 256, "values are a multiple of 8 wide, from 8 to 256");
  static_assert(BN % (8 * kCluster) == 0, "blocks of a cluster load whole groups of 8 rows, in which swizzles repeat");
  static_assert(BN % 16 == 0 && BN >= 32 && BN <= 256, "a tile holds 32 to 256 keys in steps of 16");
};

// Barriers in shared memory, full and empty: one per warpgroup for Q; one per stage for K and V. Warps of all blocks of
// the cluster release a stage, since each block loads a part of it for all; the thread that stores O releases Q. Posted
// work descriptors have only a full barrier. The ticket that a cluster draws has a barrier in each block, and one that
// signals that it has been read.
template <class Tile>
struct Barriers {
  uint32_t base;

  __device__ __forceinline__ uint32_t query_full(int warpgroup) const { return base + 8 * warpgroup; }
  __device__ __forceinline__ uint32_t query_empty(int warpgroup) const {
    return query_full(Tile::kWarpgroups + warpgroup);
  }
  __device__ __forceinline__ uint32_t keys_full(int stage) const { return at(0, stage); }
  __device__ __forceinline__ uint32_t keys_empty(int stage) const { return at(1, stage); }
  __device__ __forceinline__ uint32_t values_full(int stage) const { return at(2, stage); }
  __device__ __forceinline__ uint32_t values_empty(int stage) const { return at(3, stage); }
  __device__ __forceinline__ uint32_t posted(int post) const { return at(4, post); }
  __device__ __forceinline__ uint32_t drawn() const { return at(4, Tile::kPosts); }
  __device__ __forceinline__ uint32_t read() const { return at(4, Tile::kPosts + 1); }
  __device__ __forceinline__ uint32_t at(int kind, int stage) const {
    return base + 8 * (2 * Tile::kWarpgroups + kind * Tile::kStages + stage);
  }
};

// Called by one thread; a barrier of the block, or the cluster, must follow.
template <class Tile>
__device__ __forceinline__ void init_barriers(Barriers<Tile> const& barriers) {
  for (int w = 0; w < Tile::kWarpgroups; ++w) {
    mbarrier_init(barriers.query_full(w), 1);
    mbarrier_init(barriers.query_empty(w), 1);
  }
  for (int s = 0; s < Tile::kStages; ++s) {
    mbarrier_init(barriers.keys_full(s), 1);
    mbarrier_init(barriers.values_full(s), 1);
    mbarrier_init(barriers.keys_empty(s), Tile::kCluster * Tile::kConsumers / 32);
    mbarrier_init(barriers.values_empty(s), Tile::kCluster * Tile::kConsumers / 32);
  }
  for (int p = 0; p < Tile::kPosts; ++p) mbarrier_init(barriers.posted(p), 1);
  mbarrier_init(barriers.drawn(), 1);
  mbarrier_init(barriers.read(), Tile::kCluster);
  fence_mbarrier_init();
}

// A position in a ring of stages, and the parity of the current round.
template <int kStages>
struct Position {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread issues all loads of the block.
template <class Tile>
struct Loader {
  using Rows = typename Tile::Rows;
  using Values = typename Tile::Values;

  uint32_t smem;
  Barriers<Tile> barriers;
  PanelMaps q;
  typename Tile::Keys::Maps k, v;
  Position<Tile::kStages> at;

  // Loads Q once, and K and V tile after tile as stages become free. `begun` is called when the loads of the first tile
  // are in flight.
  template <class Begun>
  __device__ __forceinline__ void load(Work const& work, typename Tile::Keys const& keys, int parity,
                                       Begun const& begun) {
#pragma unroll 1
    for (int tile = work.loaded - 1; tile >= 0; --tile, at.advance()) {
      load_keys(work, keys, tile);
      bool const first = tile == work.loaded - 1;
      if (first) load_queries(work, parity);
      load_values(work, keys, tile);
      if (first) begun();
    }
  }
  __device__ __forceinline__ void load_queries(Work const& work, int parity) {
#pragma unroll 1
    for (int w = 0; w < Tile::kWarpgroups; ++w) {
      mbarrier_wait(barriers.query_empty(w), parity ^ 1);
      mbarrier_arrive_expect_tx(barriers.query_full(w), Rows::loaded_bytes(Tile::kRows));
      Rows::template load<Tile::kRows>(smem + w * Tile::kQueryBytes, q, barriers.query_full(w),
                                       work.global_row(work.query(Tile::kRows * w)), work.head, work.sequence.batch);
    }
  }
  __device__ __forceinline__ void load_keys(Work const& work, typename Tile::Keys const& keys, int tile) {
    uint32_t const full = barriers.keys_full(at.stage);
    mbarrier_wait(barriers.keys_empty(at.stage), at.parity ^ 1);
    mbarrier_arrive_expect_tx(full, Rows::loaded_bytes(Tile::BN));
    keys.template load<Rows>(smem + Tile::kKeys + at.stage * Tile::kKeyBytes, k, full, work, tile);
  }
  __device__ __forceinline__ void load_values(Work const& work, typename Tile::Keys const& keys, int tile) {
    uint32_t const full = barriers.values_full(at.stage);
    mbarrier_wait(barriers.values_empty(at.stage), at.parity ^ 1);
    mbarrier_arrive_expect_tx(full, Values::loaded_bytes(Tile::BN));
    keys.template load<Values>(smem + Tile::kValues + at.stage * Tile::kValueBytes, v, full, work, tile);
  }
};
