// Stores a tile's rows of O and their log-sum-exp.
#pragma once
#include "flash_attention/softmax.cuh"
#include "flash_attention/tile.cuh"

// Each row's sum over the lanes and warps that share it.
template <class Tile>
__device__ __forceinline__ void finish_sums(RowState<Tile::kM>& state, unsigned char* smem, BlockCoord const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) state.sum[i / 2][i % 2] = quad_sum(state.sum[i / 2][i % 2]);
  reduce_parts<Tile, true>(state.sum, smem, at);
}

// Stores O = accumulated / sum, rounded, in the warp's rows in shared memory; 0 for a row that attended no key.
template <class Tile>
__device__ __forceinline__ void normalize(unsigned char* smem, float const (&r_o)[Tile::kM][Tile::kN][4],
                                          RowState<Tile::kM> const& state, BlockCoord const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) {
    float const sum = state.sum[i / 2][i % 2], inverse = sum > 0 ? rcp_approx(sum) : 0;
    int const row = at.warp_row + i * 8 + at.lane / 4;
#pragma unroll
    for (int n = 0; n < Tile::kN; ++n) {
      float const* pair = &r_o[i / 2][n][i % 2 * 2];
      uint32_t const offset = Tile::LayoutO::offset(row, Tile::column(n, at.part) / 8) + at.lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(smem + Tile::kQuery + offset) =
          pack<typename Tile::T>(pair[0] * inverse, pair[1] * inverse);
    }
  }
}

// A block's rows of a tensor; the first `count` of them exist.
template <class T>
struct RowsInTurn {
  T* data;
  int64_t stride;
  int count;

  __device__ __forceinline__ bool has(int row) const { return row < count; }
  __device__ __forceinline__ T* at(int row) const { return data + row * stride; }
};

// Copies the warp's rows of O from shared to global memory, adjacent chunks by adjacent lanes; `o` is like RowsInTurn.
template <class Tile, class Rows>
__device__ __forceinline__ void store_o(Rows const& o, unsigned char const* smem, BlockCoord const& at) {
  using Layout = typename Tile::LayoutO;
  for (int i = 32 * at.part + at.lane; i < Tile::kRows * Layout::kChunks; i += 32 * Tile::kParts) {
    int const row = at.warp_row + i / Layout::kChunks, chunk = i % Layout::kChunks;
    if (o.has(row))
      *reinterpret_cast<uint4*>(o.at(row) + chunk * 8) =
          *reinterpret_cast<uint4 const*>(smem + Tile::kQuery + Layout::offset(row, chunk));
  }
}

// Natural logarithms of the sums of the exponentials; -inf for a row that attended no key.
template <class Tile, class Rows>
__device__ __forceinline__ void store_lse(Rows const& lse, RowState<Tile::kM> const& state, BlockCoord const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) {
    int const row = at.warp_row + i * 8 + at.lane / 4;
    if (at.part == 0 && at.lane % 4 == 0 && lse.has(row))
      *lse.at(row) = (state.max[i / 2][i % 2] + log2_approx(state.sum[i / 2][i % 2])) * kLn2;
  }
}

// Stores O and lse. The block must no longer use shared memory, and no copy may be in flight.
template <class Tile, class RowsOfO, class RowsOfLse>
__device__ __forceinline__ void store_rows(RowsOfO const& o, RowsOfLse const& lse, unsigned char* smem,
                                           float const (&r_o)[Tile::kM][Tile::kN][4], RowState<Tile::kM>& state,
                                           BlockCoord const& at) {
  finish_sums<Tile>(state, smem, at);
  normalize<Tile>(smem, r_o, state, at);
  sync_parts<Tile>(at);
  store_o<Tile>(o, smem, at);
  store_lse<Tile>(lse, state, at);
}
