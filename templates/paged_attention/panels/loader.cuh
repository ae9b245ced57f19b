// Loads K and V of a row tile from pages: boxes of one page by TMA, each issued by a lane that looks up its page.
#pragma once
#include "flash_attention/panels/tile.cuh"
#include "paged_attention/panels/keys.cuh"

// Executed by a warp. Lane i copies the i-th box of each tile, and looks up that of the next tile in advance, so that
// no copy waits for the table.
template <class Tile>
struct PageLoader : Loader<Tile> {
  static constexpr int BN = Tile::BN;
  static_assert(BN <= 32 * PagedKeys<BN>::kLeastBox, "each lane copies one box");

  typename Tile::Keys keys;
  Table tables;  // tables of all sequences
  int64_t table_stride;

  // Loads an entire row tile. `parity`: parity of the round of Q.
  __device__ __forceinline__ void load(PagedWork const& work, int parity) {
    Table table = tables;
    table.entries += work.number * table_stride;
    int const lane = threadIdx.x % 32, row = lane * keys.box;
    // The other lanes wait for each lane's box. A lane without a box could be so late that it waits for a past round of
    // a stage.
    if (row >= BN) return;
    Barriers<Tile> const& barriers = this->barriers;
    auto const look_up = [&](int tile) { return keys.box_in_page(work, table, tile * BN + row); };
    BoxInPage next = look_up(work.tiles - 1);
#pragma unroll 1
    for (int tile = work.tiles - 1; tile >= 0; --tile, this->at.advance()) {
      BoxInPage const from = next;
      if (tile > 0) next = look_up(tile - 1);
      int const stage = this->at.stage;
      mbarrier_wait(barriers.keys_empty(stage), this->at.parity ^ 1);
      copy<typename Tile::Rows>(this->smem + Tile::kKeys + stage * Tile::kKeyBytes, this->k, barriers.keys_full(stage),
                                work.kv_head, from, row);
      if (tile == work.tiles - 1 && lane == 0) {
        this->load_queries(work, parity);
        // the previous work item has been stored
        if constexpr (Tile::kPersistentByTicket) mbarrier_arrive(barriers.read());
      }
      mbarrier_wait(barriers.values_empty(stage), this->at.parity ^ 1);
      copy<typename Tile::Values>(this->smem + Tile::kValues + stage * Tile::kValueBytes, this->v,
                                  barriers.values_full(stage), work.kv_head, from, row);
    }
  }

 private:
  // Copies this lane's box to the rows from `row` on of a free tile of K or V.
  template <class Panels>
  static __device__ __forceinline__ void copy(uint32_t s_tile, PanelMaps const& maps, uint32_t full, int kv_head,
                                              BoxInPage const& from, int row) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive_expect_tx(full, Panels::loaded_bytes(BN));
    Panels::template load_piece<BN, 1>(s_tile, maps, full, row, from.row, kv_head, from.page);
  }
};
