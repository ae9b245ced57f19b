// Rows of Q and O that are queries times the query heads of a KV head.
#pragma once
#include "flash_attention/split_keys/gather.cuh"

// The rows of a block: row r is query r / group, of query head r % group of those that share the KV head.
struct PackedRows {
  int row0, count, group;  // row0: the block's first row, of `count`
  int batch, kv_head, heads, seq_q;

  __device__ __forceinline__ int query(int row) const { return (row0 + row) / group; }
  __device__ __forceinline__ int head(int row) const { return (row0 + row) % group; }
  __device__ __forceinline__ int head0() const { return kv_head * group; }
  // Index of a row of O in lse.
  __device__ __forceinline__ int64_t item(int row) const {
    return int64_t(batch * heads + head0() + head(row)) * seq_q + query(row);
  }
};

// Loads a warp's rows of Q, as attend() requires.
template <class Tile>
struct PackedQuery {
  PackedRows rows;
  typename Tile::T const* g_q;  // Q of the first query head
  int64_t query_stride, head_stride;

  __device__ __forceinline__ void load(uint32_t s_query) const {
    gather_rows<typename Tile::Layout, Tile::BM, 32>(s_query, threadIdx.x % 32, rows.count - rows.row0, [&](int row) {
      return g_q + rows.query(row) * query_stride + rows.head(row) * head_stride;
    });
  }
};
