// The thread that issues a block's products: S = Q Kᵀ of each row tile, one tile of keys ahead of O += P V.
#pragma once
#include "flash_attention/tcgen05/panels.cuh"
#include "flash_attention/tcgen05/tile.cuh"

template <class Tile>
struct Products {
  using T = typename Tile::T;
  static constexpr int kRowTiles = Tile::kWarpgroups;

  uint32_t smem, tensor;
  Barriers<Tile> barriers;
  int tiles[kRowTiles];                  // key tiles that each row tile visits
  Position<Tile::kStages> keys, values;  // positions of the next tiles

  // Processes all tiles of keys, from the last to the first. Row tiles may start at different tiles.
  __device__ __forceinline__ void issue(int last) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) mbarrier_wait(barriers.query_full(i), 0);
    issue_scores(last);
#pragma unroll 1
    for (int tile = last; tile >= 0; --tile) {
      if constexpr (Tile::kOverlaid) {
        issue_in_turn(tile);
      } else {
        if (tile > 0) issue_scores(tile - 1);
        issue_values(tile);
      }
    }
  }

 private:
  // Number of tiles that the row tile has visited before this one: their parity is that of its barriers.
  __device__ __forceinline__ int visited(int i, int tile) const { return tiles[i] - 1 - tile; }

  __device__ __forceinline__ void issue_scores(int tile) {
    await_keys();
#pragma unroll
    for (int i = kRowTiles - 1; i >= 0; --i) add_scores(i, tile);
    leave_keys(tile);
  }
  __device__ __forceinline__ void issue_values(int tile) {
    await_values();
#pragma unroll
    for (int i = kRowTiles - 1; i >= 0; --i) add_values(i, tile);
    leave_values(tile);
  }
  // The next scores overwrite P, after the product that reads it: products execute in order.
  __device__ __forceinline__ void issue_in_turn(int tile) {
    await_values();
    if (tile > 0) await_keys();
#pragma unroll
    for (int i = kRowTiles - 1; i >= 0; --i) {
      add_values(i, tile);
      if (tile > 0) add_scores(i, tile - 1);
    }
    leave_values(tile);
    if (tile > 0) leave_keys(tile - 1);
  }

  // Issues the scores of a row tile, if it visits the tile of keys. The previous scores have been read by the warps
  // that now compute their exponentials.
  __device__ __forceinline__ void add_scores(int i, int tile) const {
    if (visited(i, tile) < 0) return;
    mbarrier_wait(barriers.scores_read(i), visited(i, tile) % 2 ^ 1);
    tcgen05_fence_after_thread_sync();
    multiply_keys(i);
    tcgen05_commit(barriers.scores_full(i));
  }
  __device__ __forceinline__ void add_values(int i, int tile) const {
    if (visited(i, tile) < 0) return;
    mbarrier_wait(barriers.probabilities_full(i), visited(i, tile) % 2);
    tcgen05_fence_after_thread_sync();
    multiply_values(i, visited(i, tile) > 0);
    tcgen05_commit(barriers.output_full(i));
  }
  __device__ __forceinline__ void await_keys() const { mbarrier_wait(barriers.keys_full(keys.stage), keys.parity); }
  __device__ __forceinline__ void await_values() const {
    mbarrier_wait(barriers.values_full(values.stage), values.parity);
  }
  __device__ __forceinline__ void leave_keys(int tile) {
    empty(barriers.keys_empty(keys.stage), tile);
    keys.advance();
  }
  __device__ __forceinline__ void leave_values(int tile) {
    empty(barriers.values_empty(values.stage), tile);
    values.advance();
  }
  // Releases a stage to the loader when the products are complete; skipped if no later tile uses the stage, since
  // nothing would wait for it.
  __device__ __forceinline__ void empty(uint32_t barrier, int tile) const {
    if (tile >= Tile::kStages) tcgen05_commit(barrier);
  }

  __device__ __forceinline__ void multiply_keys(int i) const {
    using Rows = typename Tile::Rows;
    uint32_t const s_q = smem + i * Tile::kQueryBytes, s_k = smem + Tile::kKeys + keys.stage * Tile::kKeyBytes;
#pragma unroll
    for (int k = 0; k < Tile::D16; k += 16)
      tcgen05_mma(tensor + Tile::kScores + i * Tile::BN, k_major<Rows, Tile::kRows>(s_q, k),
                  k_major<Rows, Tile::BN>(s_k, k), tcgen05_instruction<T, Tile::BN>(), k > 0);
  }
  // Panels of one width with one product, panels of several widths with one product each.
  __device__ __forceinline__ void multiply_values(int i, bool accumulate) const {
    using Values = typename Tile::Values;
    if constexpr (Tile::kUniform) {
      multiply_columns<0, Tile::DV16>(i, accumulate);
    } else {
      constexpr int kEnd64 = 64 * Values::k64, kEnd32 = kEnd64 + 32 * Values::k32;
      multiply_columns<0, kEnd64>(i, accumulate);
      multiply_columns<kEnd64, kEnd32>(i, accumulate);
      multiply_columns<kEnd32, Tile::DV16>(i, accumulate);
    }
  }
  // Columns [kFirst, kEnd) of O, if there are any.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void multiply_columns(int i, bool accumulate) const {
    if constexpr (kEnd > kFirst) {
      uint32_t const s_v = smem + Tile::kValues + values.stage * Tile::kValueBytes;
      constexpr uint32_t kInstruction = tcgen05_instruction<T, kEnd - kFirst, Major::kK, Major::kMN>();
#pragma unroll
      for (int k = 0; k < Tile::BN; k += 16)
        tcgen05_mma(tensor + i * Tile::DV16 + kFirst, tensor + Tile::kProbabilities + i * Tile::kProbabilityColumns + k / 2,
                    mn_major<typename Tile::Values, Tile::BN>(s_v, k, kFirst), kInstruction, k > 0 || accumulate);
    }
  }
};
