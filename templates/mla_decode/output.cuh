// How a tile's rows of O leave the block: as results, or as a part of the keys for the merge.
#pragma once
#include "flash_attention/packed.cuh"
#include "flash_attention/softmax.cuh"
#include "flash_attention/split_keys.cuh"
#include "flash_attention/tile.cuh"

// Each row's sum, over the lanes and warps that share it.
template <class Tile>
__device__ __forceinline__ void finish_sums(RowState<Tile::kM>& state, unsigned char* smem, Place const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) state.sum[i / 2][i % 2] = quad_sum(state.sum[i / 2][i % 2]);
  reduce_parts<Tile, true>(state.sum, smem, at);
}

// O = accumulated / sum, rounded, into Q's place; 0 for a row that attended nothing.
template <class Tile>
__device__ __forceinline__ void normalize_rows(unsigned char* smem, float const (&r_o)[Tile::kM][Tile::kN][4],
                                               RowState<Tile::kM> const& state, Place const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) {
    float const sum = state.sum[i / 2][i % 2], inverse = sum > 0 ? rcp_approx(sum) : 0;
    int const row = at.warp_row + i * 8 + at.lane / 4;
#pragma unroll
    for (int n = 0; n < Tile::kN; ++n) {
      float const* pair = &r_o[i / 2][n][i % 2 * 2];
      uint32_t const offset = Tile::LayoutO::offset(row, Tile::column(n, at.part) / 8) + at.lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(smem + offset) = pack<typename Tile::T>(pair[0] * inverse, pair[1] * inverse);
    }
  }
}

// The warps' rows of O, from Q's place to global memory, neighbouring chunks by neighbouring lanes; and lse.
template <class Tile>
__device__ __forceinline__ void store_rows(View<typename Tile::T> const& o, float* lse, PackedRows const& rows,
                                           unsigned char const* smem, RowState<Tile::kM> const& state,
                                           Place const& at) {
  constexpr int kChunks = Tile::LayoutO::kChunks;
  int const count = rows.count - rows.row0;
  for (int i = 32 * at.part + at.lane; i < Tile::kRows * kChunks; i += 32 * Tile::kParts) {
    int const row = at.warp_row + i / kChunks, chunk = i % kChunks;
    if (row < count)
      *reinterpret_cast<uint4*>(o.at(rows.batch, rows.query(row), rows.head(row)) + chunk * 8) =
          *reinterpret_cast<uint4 const*>(smem + Tile::LayoutO::offset(row, chunk));
  }
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) {
    int const row = at.warp_row + i * 8 + at.lane / 4;
    if (at.part == 0 && at.lane % 4 == 0 && row < count)
      lse[rows.item(row)] = (state.max[i / 2][i % 2] + log2_approx(state.sum[i / 2][i % 2])) * kLn2;
  }
}

// What the block's keys gave, for the merge: rows of part_o [.., DV] and part_rows [.., 2] from `first` on, in the
// order of lse.
template <class Tile>
__device__ __forceinline__ void store_parts(float* part_o, float* part_rows, int64_t first, PackedRows const& rows,
                                            float const (&r_o)[Tile::kM][Tile::kN][4],
                                            RowState<Tile::kM> const& state, Place const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) {
    int const row = at.warp_row + i * 8 + at.lane / 4;
    if (row >= rows.count - rows.row0) continue;
    int64_t const item = first + rows.item(row);
    float* g_o = part_o + item * Tile::DV + at.lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < Tile::kN; ++n)
      *reinterpret_cast<float2*>(g_o + Tile::column(n, at.part)) =
          *reinterpret_cast<float2 const*>(&r_o[i / 2][n][i % 2 * 2]);
    if (at.part == 0 && at.lane % 4 == 0)
      reinterpret_cast<RowSum*>(part_rows)[item] = {state.max[i / 2][i % 2], state.sum[i / 2][i % 2]};
  }
}
