// The rows that a block owns, and the layout of query values: tile by tile, a tile's shifts before its deltas.
#pragma once
#include "flash_attention_backward/packed_tiles.cuh"
#include "thread.cuh"

// Rows of sequence n, from `row` on.
struct Owned {
  Sequence seq;
  int n, row;
};
template <int kRows, bool kPacked>
__device__ __forceinline__ Owned owned(unsigned number, int const* bounds, int const* cu_seqlens_q,
                                       int const* cu_seqlens_k, int boundaries, int seq_q, int seq_k) {
  OwnTile own{int(blockIdx.z), number};
  if constexpr (kPacked) own = packed_tile<kRows>(bounds, boundaries, number);
  return {sequence(cu_seqlens_q, cu_seqlens_k, own.sequence, seq_q, seq_k), own.sequence, int(own.tile) * kRows};
}

// Tiles of BM queries.
template <int BM, bool kPacked>
struct QueryTiles {
  static __device__ __forceinline__ int of_head(int seq_q, int boundaries) {
    return kPacked ? seq_q / BM + boundaries - 1 : (seq_q + BM - 1) / BM;
  }
  // Index of the first tile of a block's sequence.
  static __device__ __forceinline__ int first(Owned const& own) {
    return kPacked ? own.seq.first_query / BM + own.n : 0;
  }
  // The row of Q at an index into the tiles of packed sequences; -1: none.
  static __device__ __forceinline__ int row_at(int index, int const* bounds, int boundaries, int seq_q) {
    OwnTile const own = packed_tile<BM>(bounds, boundaries, index / BM);
    int const query = int(own.tile) * BM + index % BM;
    int first, count;
    packed_rows_of(first, count, bounds, own.sequence, seq_q);
    return query >= 0 && query < count ? first + query : -1;
  }
  // Index of the shift of a query, relative to the first tile of its head or sequence; the delta is one tile of rows
  // further.
  static __device__ __forceinline__ int64_t value_index(int64_t tile, int query) {
    return (tile + query / BM) * 2 * BM + query % BM;
  }
};
