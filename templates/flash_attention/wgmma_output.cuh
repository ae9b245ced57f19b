// How a warpgroup's rows of O and their logarithms leave the block: O through the place of Q, which has been read.
#pragma once
#include "bulk.cuh"
#include "flash_attention/wgmma_consumer.cuh"

// O = accumulated / sum, rounded, as the panels of Q lie.
template <class Tile>
__device__ __forceinline__ void normalize(unsigned char* s_o, Consumer<Tile> const& rows, int thread) {
  float const inverse[2] = {rows.softmax.inverse(0), rows.softmax.inverse(1)};
#pragma unroll
  for (int e = 0; e < Tile::D / 2; e += 2) {
    // Columns of a pair lie in one panel whatever the thread: the panel follows from those of thread 0.
    int const col = M64K16::C::col(0, e), row = M64K16::C::row(thread, e), within = M64K16::C::col(thread, e) - col;
    float const factor = inverse[e / 2 % 2];
    *reinterpret_cast<uint32_t*>(s_o + Tile::Rows::offset(64, row, col) + 2 * within) =
        pack<typename Tile::T>(rows.r_o[e] * factor, rows.r_o[e + 1] * factor);
  }
}

template <class Tile>
__device__ __forceinline__ void store_lse(float* g_lse, Consumer<Tile> const& rows, Work const& work, int seq_q,
                                          int thread) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int const head = (M64K16::C::row(thread, 0) + 8 * h) & ((1 << work.packed_log2) - 1);
    if (thread % 4 == 0 && rows.query[h] < seq_q)
      g_lse[int64_t(head) * seq_q + rows.query[h]] = rows.softmax.lse(h, rows.scale);
  }
}

// Both. Queries beyond the sequence are cut off by the copy; `g_lse` is the first head's.
template <class Tile>
__device__ __forceinline__ void store_rows(PanelMaps const& o, float* g_lse, unsigned char* smem, Consumer<Tile>& rows,
                                           Work const& work, int seq_q) {
  int const warpgroup = own_warpgroup(), first_query = work.query(64 * warpgroup);
  int thread = threadIdx.x % 128;
  forget(thread);  // its places in O would be kept in registers over all row tiles
  rows.softmax.reduce();
  store_lse(g_lse, rows, work, seq_q, thread);
  named_barrier_sync(8 + warpgroup, 128);  // all warps have read their Q
  normalize(smem + warpgroup * Tile::kQueryBytes, rows, thread);
  fence_proxy_async();
  named_barrier_sync(8 + warpgroup, 128);  // O is there
  if (thread == 0 && first_query < seq_q) {
    uint32_t const s_o = rows.smem + warpgroup * Tile::kQueryBytes;
    Tile::Rows::template store<64>(o, s_o, first_query, work.head, work.batch);
    cp_async_bulk_commit();
    cp_async_bulk_wait_read<0>();
  }
  if (Tile::kPersistent && thread == 0) mbarrier_arrive(rows.barriers.query_empty(warpgroup));
}
