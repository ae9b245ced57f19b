// Overlap of the exponentials of one tile with the products of others: three orders of the same steps.
#pragma once
#include "flash_attention/wgmma/consumer.cuh"

// No overlap within a warpgroup.
template <class Tile>
__device__ __forceinline__ void attend_in_order(Consumer<Tile>& rows, int tiles) {
  typename Consumer<Tile>::Scores r_s;
#pragma unroll 1
  for (int tile = tiles - 1; tile >= 0; --tile) {
    rows.issue_scores(r_s);
    rows.template wait_scores<0>(r_s);
    rows.exponentiate(r_s, tile);
    rows.prepare(r_s);
    rows.await_values();
    rows.issue_values();
    rows.template wait_values<0>();
  }
}

// The exponentials of a tile overlap the product of the previous tile with V. ptxas moves a wait to the start of its
// basic block, before the exponentials, unless the block ends there.
template <class Tile>
__device__ __forceinline__ void attend_over_values(Consumer<Tile>& rows, int tiles) {
  typename Consumer<Tile>::Scores r_s;
  int tile = tiles - 1;
  bool const last = rows.warpgroup == Tile::kWarpgroups - 1;
  if (tile > 0 && last) rows.pass_turn();
  rows.issue_scores(r_s);
  rows.template wait_scores<0>(r_s);
  rows.exponentiate(r_s, tile);
  rows.prepare(r_s);
#pragma unroll 1
  while (--tile >= 0) {
    rows.await_turn();
    rows.issue_scores(r_s);
    rows.await_values();
    rows.issue_values();
    if (tile > 0 || !last) rows.pass_turn();  // the very last would leave a pending arrival
    rows.template wait_scores<1>(r_s);
    rows.exponentiate(r_s, tile);
    end_basic_block(rows.exponentiated(tile));
    rows.template wait_values<0>();
    rows.prepare(r_s);
  }
  rows.await_values();
  rows.issue_values();
  rows.template wait_values<0>();
}

// One step of attend_over_both: `r_next` is computed while the exponentials of `r_s` are.
template <class Tile>
__device__ __forceinline__ void step_over_both(Consumer<Tile>& rows, typename Consumer<Tile>::Scores& r_s,
                                               typename Consumer<Tile>::Scores& r_next, int tile, bool& first) {
  rows.issue_scores(r_next);
  rows.exponentiate(r_s, tile);
  rows.await_values();  // placed here, because it ends the basic block
  rows.template wait_values<1>(!first);
  first = false;
  rows.prepare(r_s);
  rows.issue_values();
  rows.template wait_scores<1>(r_next);
}

template <class Tile>
__device__ __forceinline__ void finish_over_both(Consumer<Tile>& rows, typename Consumer<Tile>::Scores& r_s,
                                                 bool first) {
  rows.exponentiate(r_s, 0);
  rows.await_values();
  rows.template wait_values<0>(!first);
  rows.prepare(r_s);
  rows.issue_values();
  rows.template wait_values<0>();
}

// The exponentials of a tile overlap the previous product with V and the next product with K, which needs a second set
// of scores.
template <class Tile>
__device__ __forceinline__ void attend_over_both(Consumer<Tile>& rows, int tiles) {
  typename Consumer<Tile>::Scores r_even, r_odd;
  bool first = true;
  int tile = tiles - 1;
  rows.issue_scores(r_even);
  rows.template wait_scores<0>(r_even);
#pragma unroll 1
  while (true) {
    if (tile == 0) return finish_over_both(rows, r_even, first);
    step_over_both(rows, r_even, r_odd, tile--, first);
    if (tile == 0) return finish_over_both(rows, r_odd, first);
    step_over_both(rows, r_odd, r_even, tile--, first);
  }
}

template <class Tile>
__device__ __forceinline__ void attend(Consumer<Tile>& rows, int tiles) {
  if constexpr (Tile::kOverlap == 0) attend_in_order(rows, tiles);
  if constexpr (Tile::kOverlap == 1) attend_over_values(rows, tiles);
  if constexpr (Tile::kOverlap == 2) attend_over_both(rows, tiles);
}
