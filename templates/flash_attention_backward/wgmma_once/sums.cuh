// The order of the steps of the single pass: five products per tile, of which the two warpgroups compute dQ
// alternately.
#pragma once
#include "flash_attention_backward/wgmma_once/parts.cuh"
#include "flash_attention_backward/panels/sight.cuh"

// Nonexistent keys must not contribute to dQ: no query attends them.
template <class Pass>
__device__ __forceinline__ Sight<Pass> sight_of_keys(int row, int seq_q, int seq_k) {
  constexpr int kNone = 0x7fffffff;
  Sight<Pass> sight(row, seq_q, seq_k);
  int const mine = row + M64K16::C::row(threadIdx.x % 128, 0);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!Pass::kCausal) sight.bound[h] = 0;
    if (mine + 8 * h >= seq_k) sight.bound[h] = kNone;
  }
  if (row + 64 > seq_k) sight.whole = kNone;
  return sight;
}

// The warpgroup's rows of an own tensor as operand A of scores or products, [D16 / 16][4]; empty if they are read from
// shared memory.
template <class Pass, TensorRole kRole>
struct OwnRows {
  static constexpr bool kHeld = int(kRole) < Pass::kHeld;
  static constexpr int kSteps = Pass::D16 / 16;
  uint32_t r[kHeld ? kSteps : 1][4];

  __device__ __forceinline__ explicit OwnRows(Rows<Pass> const& rows) {
    if constexpr (kHeld) {
      uint32_t const s_own = shared_address(rows.smem) + Pass::own(kRole, rows.owner);
#pragma unroll
      for (int k = 0; k < Pass::D16; k += 16)
        ldmatrix(r[k / 16], s_own + Pass::Columns::offset(64, matrix_row(), k + matrix_col()));
    }
  }
  // Issues own · passingᵀ as one group.
  __device__ __forceinline__ void issue_product(Rows<Pass>& rows, typename Rows<Pass>::Scores& r_s) const {
    if constexpr (kHeld) {
      rows.await(kRole, rows.at);
      uint32_t const s_tile = shared_address(rows.smem) + Pass::tile(kRole, rows.at.stage);
      fence_registers(r_s);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < Pass::D16; k += 16)
        wgmma_m64k16<typename Pass::T>(r_s, r[k / 16], Pass::Columns::template k_major<Pass::kTile>(s_tile, k), k > 0);
      wgmma_commit();
    } else {
      rows.template issue_product<kRole>(r_s);
    }
  }
};

// Exponentials overlap the product of V and dO, dS overlaps the sum of dV; while one warpgroup computes a part of dQ,
// the other computes its next scores. All groups are awaited before a part is computed: nothing is in flight where the
// branch joins, and the part reuses the registers of scores and products.
template <class Pass>
__device__ __forceinline__ void sum_once(typename Rows<Pass>::Sums& r_dk, typename Rows<Pass>::Sums& r_dv,
                                         Rows<Pass>& rows, Sight<Pass> const& sight, Descent const& walk,
                                         Exchange<Pass> const& exchange) {
  typename Rows<Pass>::Scores r_s, r_product;
  typename Rows<Pass>::Operand r_p, r_ds;
  int const count = walk.count();
  int tile = walk.end - 1;
  if (count <= 0) return;
  OwnRows<Pass, kFirst> const r_keys(rows);
  OwnRows<Pass, kSecond> const r_values(rows);
#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    r_keys.issue_product(rows, r_s);
    r_values.issue_product(rows, r_product);
    rows.template wait<1>(r_s);
    rows.cap(r_s);
    sight.apply(r_s, tile * Pass::kTile);
    rows.exponentiate_for_both(r_p, r_s);
    rows.template issue_sum<kSecond>(r_dv, r_p, rows.at.stage);
    rows.template wait<1>(r_product);
    rows.differentiate(r_ds, r_s, r_product);
    rows.template issue_sum<kFirst>(r_dk, r_ds, rows.at.stage);
    give_slopes(rows, exchange, r_ds, number);
    rows.template wait<0>(r_dv);
    fence_registers(r_dk);
    rows.release(kSecond, rows.at.stage);
    rows.release(kFirst, rows.at.stage);
    if (number % 2 == rows.warpgroup) make_part(rows, exchange, number);
    rows.at.advance();
    tile = walk.after(tile);
  }
}
