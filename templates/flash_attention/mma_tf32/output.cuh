// Stores rows of O directly from registers, where a lane's columns are adjacent.
#pragma once
#include "flash_attention/mma_tf32/keys.cuh"
#include "flash_attention/output.cuh"

// Stores O = accumulated / sum, 0 for a row that attended no key, for the rows that exist; `o` is like RowsInTurn. A
// lane has 2 kTiles adjacent columns of a group.
template <class Tile, class Rows>
__device__ __forceinline__ void store_o_tf32(Rows const& o, float const (&r_o)[Tile::kM][Tile::kN][4],
                                             RowState<Tile::kM> const& state, BlockCoord const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) {
    int const row = at.warp_row + i * 8 + at.lane / 4;
    if (!o.has(row)) continue;
    float const sum = state.sum[i / 2][i % 2], inverse = sum == 0 ? 0 : rcp_approx(sum);  // NaN is kept
    float* const g_row = o.at(row) + at.part * Tile::kN * 8;
    ColumnGroups<Tile::kN>::each([&](auto tiles, int first) {
      constexpr int kTiles = decltype(tiles)::value;
      float* const g = g_row + first * 8 + at.lane % 4 * 2 * kTiles;
      auto const value = [&](int c) { return r_o[i / 2][first + c % kTiles][i % 2 * 2 + c / kTiles] * inverse; };
      if constexpr (kTiles == 1) {
        *reinterpret_cast<float2*>(g) = make_float2(value(0), value(1));
      } else {
#pragma unroll
        for (int c = 0; c < 2 * kTiles; c += 4)
          *reinterpret_cast<float4*>(g + c) = make_float4(value(c), value(c + 1), value(c + 2), value(c + 3));
      }
    });
  }
}

// Stores O and lse. The block must no longer use shared memory.
template <class Tile, class RowsOfO, class RowsOfLse>
__device__ __forceinline__ void store_rows_tf32(RowsOfO const& o, RowsOfLse const& lse, unsigned char* smem,
                                                float const (&r_o)[Tile::kM][Tile::kN][4], RowState<Tile::kM>& state,
                                                BlockCoord const& at) {
  finish_sums<Tile>(state, smem, at);
  store_o_tf32<Tile>(o, r_o, state, at);
  store_lse<Tile>(lse, state, at);
}
