// The rows of a block, queries times the query heads of a KV head, on their way in and out.
#pragma once
#include "flash_attention/packed.cuh"

// Rows of Q, O or lse in global memory.
template <class T>
struct RowsOfHeads {
  PackedRows rows;
  T* data;  // of query 0 and the first query head
  int64_t query_stride, head_stride;

  __device__ __forceinline__ bool has(int row) const { return rows.row0 + row < rows.count; }
  __device__ __forceinline__ T* at(int row) const {
    return data + rows.query(row) * query_stride + rows.head(row) * head_stride;
  }
};

// Loads the rows of Q, as attend() asks for.
template <class Tile>
struct QueryOfHeads {
  RowsOfHeads<typename Tile::T const> q;

  __device__ __forceinline__ void load(uint32_t s_query) const {
    gather_rows<typename Tile::Layout, Tile::BM, Tile::kThreads>(s_query, threadIdx.x, q.rows.count - q.rows.row0,
                                                                 [&](int row) { return q.at(row); });
  }
};
