// Stores a row tile of O and its log-sum-exp: O through the shared memory of Q, which is no longer read.
#pragma once
#include "bulk.cuh"
#include "flash_attention/output_rows.cuh"
#include "flash_attention/tcgen05/rows.cuh"
#include "thread.cuh"

// O = accumulated / sum, rounded: calls store(col, 8 columns of the thread's row).
template <class Tile, class Store>
__device__ __forceinline__ void normalize(RowThread<Tile> const& row, Store const& store) {
  using T = typename Tile::T;
  constexpr int kChunk = RowThread<Tile>::kChunk;
  float const inverse = row.softmax.inverse();
#pragma unroll
  for (int col = 0; col < Tile::DV16; col += kChunk) {
    float r_o[kChunk];
    row.load_output(r_o, col);
#pragma unroll
    for (int e = 0; e < kChunk; e += 8) {
      uint32_t packed[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) packed[p] = pack<T>(r_o[e + 2 * p] * inverse, r_o[e + 2 * p + 1] * inverse);
      store(col + e, uint4{packed[0], packed[1], packed[2], packed[3]});
    }
  }
}

// Stores a complete row tile with one copy. Queries beyond the tensor are clipped.
template <class Tile>
__device__ __forceinline__ void store_tile(PanelMaps const& o, unsigned char* s_o, RowThread<Tile> const& row,
                                           Work const& work, int first_query, int lane) {
  normalize(row, [&](int col, uint4 eight) {
    *reinterpret_cast<uint4*>(s_o + Tile::Outputs::offset(Tile::kRows, lane, col)) = eight;
  });
  fence_proxy_async();
  named_barrier_sync(1 + row.i, 128);  // O is written
  if (lane == 0 && first_query < work.sequence.queries) {
    Tile::Outputs::template store<Tile::kRows>(o, shared_address(s_o), work.global_row(first_query), work.head,
                                               work.sequence.batch);
    cp_async_bulk_commit();
    cp_async_bulk_wait_read<0>();
  }
}

// Stores O and the log-sum-exp, after the last product. `g_lse` is that of the first head; `g_o` is for packed
// sequences: if one ends within the row tile, a copy of all rows would overwrite the next sequence.
template <class Tile>
__device__ __forceinline__ void store_rows(PanelMaps const& o, OutputRows<typename Tile::T> const& g_o, float* g_lse,
                                           unsigned char* smem, RowThread<Tile> const& row, Work const& work,
                                           int seq_q) {
  int const first = Tile::kRows * row.i, lane = threadIdx.x % 128, query = work.query(first + lane);
  int const head = lane & ((1 << work.packed_log2) - 1);
  bool const own = query < work.sequence.queries;
  if (own) g_lse[int64_t(head) * seq_q + work.global_row(query)] = row.softmax.lse();
  if (Tile::kPackedSequences && work.query(first + Tile::kRows) > work.sequence.queries) {
    auto* g_row = g_o.at(work.global_row(query), work.head + head);
    normalize(row, [&](int col, uint4 eight) {
      if (own && col < Tile::DV) *reinterpret_cast<uint4*>(g_row + col) = eight;
    });
  } else {
    store_tile(o, smem + row.i * Tile::kQueryBytes, row, work, work.query(first), lane);
  }
}
