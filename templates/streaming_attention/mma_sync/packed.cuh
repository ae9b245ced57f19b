// Rows of a block that are queries of several query heads of one KV head: all queries of the first, then of the next.
#pragma once
#include "flash_attention/rows.cuh"

// Distribution of the BM rows of a block: 2^shift heads, the highest power of two that divides the `group` of a KV
// head, up to kPackedHeads.
template <int BM, int kPackedHeads>
struct Packing {
  static constexpr bool kPacked = kPackedHeads > 1;
  static_assert(!kPacked || (BM & (BM - 1)) == 0, "rows are told apart by their bits");
  static_assert(kPackedHeads <= 8 && (kPackedHeads & (kPackedHeads - 1)) == 0, "1, 2, 4 or 8 heads");
  static_assert(!kPacked || BM / kPackedHeads % 16 == 0, "an mma tile has queries of one head");

  int shift;

  __device__ __forceinline__ explicit Packing(int group) : shift(0) {
    int const heads = min(kPackedHeads, group & -group);
    if (kPacked) shift = (heads > 1) + (heads > 2) + (heads > 4);
  }
  // Queries of each head.
  __device__ __forceinline__ int queries() const { return BM >> shift; }
  __device__ __forceinline__ int query(int row) const { return kPacked ? row & (queries() - 1) : row; }
  __device__ __forceinline__ int head(int row) const { return kPacked ? (row << shift) / BM : 0; }
};

// A block's rows of a tensor; only the first `queries` of each head exist.
template <class T, class Packing>
struct HeadRows {
  Packing packing;
  T* data;
  int64_t query_stride, head_stride;
  int queries;

  // Number of existing rows of the same head from `row` on.
  __device__ __forceinline__ int left(int row) const { return queries - packing.query(row); }
  __device__ __forceinline__ bool has(int row) const { return left(row) > 0; }
  __device__ __forceinline__ T* at(int row) const {
    return data + packing.query(row) * query_stride + packing.head(row) * head_stride;
  }
};

// Loads a block's rows of Q, as attend() requires.
template <class Tile, class Packing>
struct QueryRows {
  static constexpr int kRows = Packing::kPacked ? 16 : Tile::BM;  // rows of one head

  HeadRows<typename Tile::T const, Packing> q;

  __device__ __forceinline__ void load(uint32_t s_query) const {
    using Layout = typename Tile::Layout;
    int64_t const step = kRows * q.query_stride, to_next_head = q.head_stride - q.packing.queries() * q.query_stride;
    typename Tile::T const* g_rows = q.data;
#pragma unroll
    for (int row = 0; row < Tile::BM; row += kRows) {
      load_rows<Layout, kRows, Tile::kThreads>(s_query + row * Layout::kRowBytes, g_rows, q.query_stride, q.left(row));
      g_rows += q.packing.query(row + kRows) == 0 ? step + to_next_head : step;
    }
  }
};
