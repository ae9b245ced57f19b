// How a row tile of O and its logarithms leave the block: O through the place of Q, which has been read.
#pragma once
#include "bulk.cuh"
#include "flash_attention/tcgen05_rows.cuh"
#include "thread.cuh"

// O = accumulated / sum, rounded, in its panels.
template <class Tile>
__device__ __forceinline__ void normalize(unsigned char* s_o, RowThread<Tile> const& row, int lane) {
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
      *reinterpret_cast<uint4*>(s_o + Tile::Outputs::offset(Tile::kRows, lane, col + e)) = {packed[0], packed[1],
                                                                                           packed[2], packed[3]};
    }
  }
}

// Both, behind the last product. Queries beyond the tensor are cut off by the copy; `g_lse` is the first head's.
template <class Tile>
__device__ __forceinline__ void store_rows(PanelMaps const& o, float* g_lse, unsigned char* smem,
                                           RowThread<Tile> const& row, Work const& work, int seq_q) {
  int const lane = threadIdx.x % 128, query = work.query(Tile::kRows * row.i + lane);
  int const head = lane & ((1 << work.packed_log2) - 1), first_query = work.query(Tile::kRows * row.i);
  if (query < work.sequence.queries) g_lse[int64_t(head) * seq_q + work.place(query)] = row.softmax.lse();
  unsigned char* s_o = smem + row.i * Tile::kQueryBytes;
  normalize(s_o, row, lane);
  fence_proxy_async();
  named_barrier_sync(1 + row.i, 128);  // O is there
  if (lane == 0 && first_query < work.sequence.queries) {
    Tile::Outputs::template store<Tile::kRows>(o, shared_address(s_o), work.place(first_query), work.head,
                                               work.sequence.batch);
    cp_async_bulk_commit();
    cp_async_bulk_wait_read<0>();
  }
}
