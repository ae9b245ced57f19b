// A row tile: its rows and heads, and the number of key tiles it visits.
#pragma once
#include "flash_attention/sequences.cuh"
#include "types.cuh"

// A row tile's coordinates in the problem. If p = 2^packed_log2 heads share it, row r of its BM is query first_query +
// r / p of head + r % p.
struct alignas(16) Work {
  Sequence sequence;
  int first_query, packed_log2, head, kv_head;
  int tiles;   // key tiles, visited from the last to the first; 0: no more work
  int loaded;  // tiles loaded for all row tiles of the cluster: the maximum over them

  __device__ __forceinline__ int query(int row) const { return first_query + (row >> packed_log2); }
  // Row of a query in q, o and lse.
  __device__ __forceinline__ int64_t global_row(int query) const { return sequence.first_query + query; }
};
