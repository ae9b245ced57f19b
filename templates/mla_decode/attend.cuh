// All work between Q in global memory and O in registers.
#pragma once
#include "flash_attention/keys.cuh"
#include "flash_attention/packed.cuh"
#include "flash_attention/split_keys.cuh"
#include "mla_decode/latent.cuh"
#include "mla_decode/products.cuh"
#include "mla_decode/ring.cuh"

// Starts copying the block's rows of Q; those behind the last become zeros.
template <class Tile>
__device__ __forceinline__ void load_queries(uint32_t s_query, View<typename Tile::T const> const& q,
                                             PackedRows const& rows) {
  RowCopies<typename Tile::Layout, Tile::BM, Tile::kThreads> const copies;
#pragma unroll
  for (int i = 0; i < copies.kOwn; ++i) {
    int const row = min(copies.row(i), rows.count - rows.row0 - 1);
    copies.load(s_query, i, q.at(rows.batch, rows.query(row), rows.head(row)), row == copies.row(i));
  }
  cp_async_commit();
}

// The exponentials of a tile's scores into shared memory, with maxima and sums in `state`, and r_o scaled to match.
// `visible(i)`: how many rows of the sequence the lane's row 8 i attends; none of them attends fewer than `least`.
template <class Tile, class Visible>
__device__ __forceinline__ void weigh(float (&r_s)[Tile::kM][Tile::kKeys / 8][4], float (&r_o)[Tile::kM][Tile::kN][4],
                                      RowState<Tile::kM>& state, unsigned char* smem, float scale, int key, int least,
                                      Visible const& visible, Place const& at) {
  uint32_t r_p[ceil_div(Tile::kKeys, 16)][Tile::kM][4];
  float peak[Tile::kM][2];
  int const mine = key + at.part * Tile::kKeys;
  if (mine + Tile::kKeys > least) mask(r_s, mine + at.lane % 4 * 2, visible);
  row_max(peak, r_s);
  reduce_parts<Tile, false>(peak, smem, at);
  raise_max<true>(state, r_o, peak, scale);
  exponentiate<typename Tile::T>(r_p, state, r_s, scale);
  share_weights<Tile>(smem, r_p, at);
}

// r_o = the sum of P V over the tiles that the ring brings; in the end the block may use all shared memory. `before`:
// the position of query 0; `scale`: of scores, in base 2.
template <class Tile>
__device__ __forceinline__ void attend(float (&r_o)[Tile::kM][Tile::kN][4], RowState<Tile::kM>& state,
                                       unsigned char* smem, View<typename Tile::T const> const& q,
                                       PackedRows const& rows, int before, float scale, LatentRing<Tile>& ring,
                                       Place const& at) {
  uint32_t const s_block = shared_address(smem);
  Addresses<Tile> const lane(s_block, at);
  int limit[2 * Tile::kM];  // rows of the sequence that the lane's rows attend
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) limit[i] = rows.query(at.warp_row + i * 8 + at.lane / 4) + before + 1;
  int const least = rows.query(0) + before + 1;

  load_queries<Tile>(s_block, q, rows);
  ring.fill();
  clear(r_o);
  reset(state);
  for (int tile = 0; tile < ring.tiles; ++tile) {
    float r_s[Tile::kM][Tile::kKeys / 8][4];
    uint32_t const s_rows = ring.acquire(tile);
    scores<Tile>(r_s, lane, s_rows);
    weigh<Tile>(r_s, r_o, state, smem, scale, ring.key(tile), least, [&](int i) { return limit[i]; }, at);
    sync_parts<Tile>(at);
    accumulate_values<Tile>(r_o, lane, s_rows);
  }
  cp_async_wait<0>();
  __syncthreads();
}
