// The order of a pass's steps: while one product is processed, another is in flight. ptxas moves a wait to the start of
// its basic block; if no wgmma is between the exponentials and a wait, the basic block is ended before the wait. ptxas
// keeps registers of an operand A until it sees all groups complete, which is why a block that does not chain needs
// fewer. With no tile to stream, a function returns at once: if a path without wgmma joins one that has some in flight,
// ptxas serializes them all (C7515).
#pragma once
#include "flash_attention_backward/panels/sight.cuh"

// dSᵀ Q and Pᵀ dO, for dK and dV. Exponentials overlap the product of V and dO, dS overlaps the sum of dV, and if
// chained, the products of the next tile overlap the sum of dK.
template <class Pass>
__device__ __forceinline__ void sum_both(typename Rows<Pass>::template SumsOf<kFirst>& r_first,
                                         typename Rows<Pass>::template SumsOf<kSecond>& r_second, Rows<Pass>& rows,
                                         Sight<Pass> const& sight, Walk const& walk) {
  typename Rows<Pass>::Scores r_s, r_product;
  typename Rows<Pass>::Operand r_p, r_ds;
  int const count = walk.count();
  int tile = walk.first, before = 0;
  if (count <= 0) return;
#pragma unroll 1
  for (int index = 0; index < count; ++index) {
    rows.template issue_product<kFirst>(r_s);
    rows.template issue_product<kSecond>(r_product);
    rows.template wait<1>(r_s);
    fence_registers(r_first);
    if (Pass::kChained && index > 0) rows.release(kFirst, before);
    rows.cap(r_s);
    sight.apply(r_s, tile * Pass::kTile);
    rows.exponentiate_for_both(r_p, r_s);
    rows.template issue_sum<kSecond>(r_second, r_p, rows.at.stage);
    rows.template wait<1>(r_product);
    rows.differentiate(r_ds, r_s, r_product);
    rows.template issue_sum<kFirst>(r_first, r_ds, rows.at.stage);
    rows.template wait<Pass::kChained>(r_second);
    rows.release(kSecond, rows.at.stage);
    if (!Pass::kChained) rows.release(kFirst, rows.at.stage);
    before = rows.at.stage;
    rows.at.advance();
    tile = walk.after(tile);
  }
  rows.template wait<0>(r_first);
}

// dS · first only: K for dQ, or Q for dK. Exponentials overlap the other product, and the products of the next tile
// overlap the sum.
template <class Pass>
__device__ __forceinline__ void sum_first(typename Rows<Pass>::template SumsOf<kFirst>& r_first, Rows<Pass>& rows,
                                          Sight<Pass> const& sight, Walk const& walk) {
  typename Rows<Pass>::Scores r_s, r_product;
  typename Rows<Pass>::Operand r_ds;
  int const count = walk.count();
  int tile = walk.first, before = 0;
  if (count <= 0) return;
#pragma unroll 1
  for (int index = 0; index < count; ++index) {
    rows.template issue_product<kFirst>(r_s);
    rows.template issue_product<kSecond>(r_product);
    rows.template wait<1>(r_s);
    fence_registers(r_first);
    if (index > 0) rows.release(kFirst, before);
    rows.cap(r_s);
    sight.apply(r_s, tile * Pass::kTile);
    rows.exponentiate_for_ds(r_s);
    end_basic_block(tile);
    rows.template wait<0>(r_product);
    rows.release(kSecond, rows.at.stage);
    rows.differentiate(r_ds, r_s, r_product);
    rows.template issue_sum<kFirst>(r_first, r_ds, rows.at.stage);
    before = rows.at.stage;
    rows.at.advance();
    tile = walk.after(tile);
  }
  rows.template wait<0>(r_first);
}

// P · second only: dO for dV. The exponentials of a tile overlap the sum of the previous tile.
template <class Pass>
__device__ __forceinline__ void sum_second(typename Rows<Pass>::template SumsOf<kSecond>& r_second, Rows<Pass>& rows,
                                           Sight<Pass> const& sight, Walk const& walk) {
  typename Rows<Pass>::Scores r_s;
  typename Rows<Pass>::Operand r_p;
  int const count = walk.count();
  int tile = walk.first;
  if (count <= 0) return;
  rows.template issue_product<kFirst>(r_s);
  rows.template wait<0>(r_s);
  rows.cap(r_s);
  sight.apply(r_s, tile * Pass::kTile);
  rows.exponentiate(r_s);
  rows.release(kFirst, rows.at.stage);
  rows.round(r_p, r_s);
#pragma unroll 1
  for (int index = 1; index < count; ++index) {
    Slot<Pass::kStages> const before = rows.at;
    rows.at.advance();
    tile = walk.after(tile);
    rows.template issue_product<kFirst>(r_s);
    rows.await(kSecond, before);
    rows.template issue_sum<kSecond>(r_second, r_p, before.stage);
    rows.template wait<1>(r_s);
    rows.cap(r_s);
    sight.apply(r_s, tile * Pass::kTile);
    rows.exponentiate(r_s);
    rows.release(kFirst, rows.at.stage);
    end_basic_block(tile);
    rows.template wait<0>(r_second);
    rows.release(kSecond, before.stage);
    rows.round(r_p, r_s);
  }
  rows.await(kSecond, rows.at);
  rows.template issue_sum<kSecond>(r_second, r_p, rows.at.stage);
  rows.template wait<0>(r_second);
}
