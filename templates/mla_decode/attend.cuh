// Everything except the products, for any multiply instruction: copies of Q, and the mask.
#pragma once
#include "flash_attention/keys.cuh"
#include "flash_attention/split_keys/packed.cuh"
#include "flash_attention/split_keys/split_keys.cuh"
#include "flash_attention/softmax.cuh"
#include "flash_attention/tile.cuh"
#include "mla_decode/ring.cuh"

// Starts copying the block's rows of Q; those after the last become zeros.
template <class Tile>
__device__ __forceinline__ void load_queries(uint32_t s_query, View<typename Tile::T const> const& q,
                                             PackedRows const& rows) {
  RowCopies<typename Tile::LayoutQ, Tile::BM, Tile::kThreads> const copies;
#pragma unroll
  for (int i = 0; i < copies.kOwn; ++i) {
    int const row = min(copies.row(i), rows.count - rows.row0 - 1);
    copies.load(s_query, i, q.at(rows.batch, rows.query(row), rows.head(row)), row == copies.row(i));
  }
  cp_async_commit();
}

// The rows of a sequence that the lane's rows attend.
template <class Tile>
struct Visible {
  int limit[2 * Tile::kM];  // end of the attended rows of the lane's row 8 i
  int least;                // all of the block's rows attend at least this many

  __device__ __forceinline__ Visible(PackedRows const& rows, int before, BlockCoord const& at)
      : least(rows.query(0) + before + 1) {
#pragma unroll
    for (int i = 0; i < 2 * Tile::kM; ++i) limit[i] = rows.query(at.warp_row + i * 8 + at.lane / 4) + before + 1;
  }
  // Masks a tile's scores, and computes the maximum of each row over all warps that share it.
  __device__ __forceinline__ void peaks(float (&peak)[Tile::kM][2], float (&r_s)[Tile::kM][Tile::kKeys / 8][4],
                                        unsigned char* smem, int key, BlockCoord const& at) const {
    int const mine = key + at.part * Tile::kKeys;
    if (mine + Tile::kKeys > least) mask(r_s, mine + at.lane % 4 * 2, [&](int i) { return limit[i]; });
    row_max(peak, r_s);
    reduce_parts<Tile, false>(peak, smem, at);
  }
};
