// A row tile: which rows of which heads, and how many tiles of keys they visit.
#pragma once
#include "flash_attention/sequences.cuh"
#include "types.cuh"

// A row tile's coordinates in the problem. Where p = 2^packed_log2 heads share it, row r of its BM is query
// first_query + r / p of head + r % p.
struct alignas(16) Work {
  Sequence sequence;
  int first_query, packed_log2, head, kv_head;
  int tiles;   // of keys, that it visits from the last to the first; 0: there is no more work
  int loaded;  // of these, for all row tiles of the cluster: as many as the longest visits

  __device__ __forceinline__ int query(int row) const { return first_query + (row >> packed_log2); }
  // Where it lies in q, o and lse.
  __device__ __forceinline__ int64_t global_row(int query) const { return sequence.first_query + query; }
};
