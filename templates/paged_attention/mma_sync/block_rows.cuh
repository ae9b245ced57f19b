// Loads and stores of the rows of a block: queries times the query heads of a KV head.
#pragma once
#include "flash_attention/output.cuh"
#include "flash_attention/split_keys/packed.cuh"
#include "flash_attention/split_keys/part.cuh"

// Rows of Q, O or lse in global memory.
template <class T>
struct RowsOfHeads {
  PackedRows rows;
  T* data;  // row of query 0 and the first query head
  int64_t query_stride, head_stride;

  __device__ __forceinline__ bool has(int row) const { return rows.row0 + row < rows.count; }
  __device__ __forceinline__ T* at(int row) const {
    return data + rows.query(row) * query_stride + rows.head(row) * head_stride;
  }
};

// Loads the rows of Q, as attend() requires.
template <class Tile>
struct QueryOfHeads {
  RowsOfHeads<typename Tile::T const> q;

  __device__ __forceinline__ void load(uint32_t s_query) const {
    gather_rows<typename Tile::Layout, Tile::BM, Tile::kThreads>(s_query, threadIdx.x, q.rows.count - q.rows.row0,
                                                                 [&](int row) { return q.at(row); });
  }
};

// Stores the block's partial results over a part of the keys, as fp32 and not divided by sums: row item_of(row) of
// part_o [.., DV] and of part_rows [.., 2].
template <class Tile, class Where>
__device__ __forceinline__ void store_parts(PackedRows const& rows, float* part_o, float* part_rows, Where const& item_of,
                                            unsigned char* smem, float const (&r_o)[Tile::kM][Tile::kN][4],
                                            RowState<Tile::kM>& state, BlockCoord const& at) {
  finish_sums<Tile>(state, smem, at);
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i) {
    int const row = at.warp_row + i * 8 + at.lane / 4;
    if (rows.row0 + row >= rows.count) continue;
    int64_t const item = item_of(row);
    float* const g_o = part_o + item * Tile::DV + at.lane % 4 * 2;
    if (at.part == 0 && at.lane % 4 == 0)
      reinterpret_cast<RowSum*>(part_rows)[item] = {state.max[i / 2][i % 2], state.sum[i / 2][i % 2]};
#pragma unroll
    for (int n = 0; n < Tile::kN; ++n)
      *reinterpret_cast<float2*>(g_o + Tile::column(n, at.part)) =
          *reinterpret_cast<float2 const*>(&r_o[i / 2][n][i % 2 * 2]);
  }
}
