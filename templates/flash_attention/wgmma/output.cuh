// Stores a warpgroup's rows of O and their log-sum-exp: O through the shared memory of Q, which is no longer read.
#pragma once
#include "bulk.cuh"
#include "flash_attention/wgmma/consumer.cuh"
#include "flash_attention/wgmma/packed.cuh"

// O = accumulated / sum, rounded, in its panels.
template <class Tile>
__device__ __forceinline__ void normalize(unsigned char* s_o, Consumer<Tile> const& rows, int thread) {
  float const inverse[2] = {rows.softmax.inverse(0), rows.softmax.inverse(1)};
#pragma unroll
  for (int e = 0; e < Tile::DV / 2; e += 2) {
    // The columns of a pair are in one panel for every thread: the panel follows from those of thread 0.
    int const col = M64K16::C::col(0, e), row = M64K16::C::row(thread, e), within = M64K16::C::col(thread, e) - col;
    float const factor = inverse[e / 2 % 2];
    *reinterpret_cast<uint32_t*>(s_o + Tile::Outputs::offset(64, row, col) + 2 * within) =
        pack<typename Tile::T>(rows.r_o[e] * factor, rows.r_o[e + 1] * factor);
  }
}

template <class Tile>
__device__ __forceinline__ void store_lse(float* g_lse, Consumer<Tile> const& rows, Work const& work, int seq_q,
                                          int heads, int thread) {
  if (Tile::kClusterOfHeads && work.head >= heads) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int const head = (M64K16::C::row(thread, 0) + 8 * h) & ((1 << work.packed_log2) - 1);
    if (thread % 4 == 0 && rows.query[h] < work.sequence.queries)
      g_lse[int64_t(head) * seq_q + work.global_row(rows.query[h])] = rows.softmax.lse(h);
  }
}

// Stores O and the log-sum-exp. The copy clips queries beyond the tensor; `g_o` is for packed sequences, `g_lse` is
// that of the first head.
template <class Tile>
__device__ __forceinline__ void store_rows(PanelMaps const& o, OutputRows<typename Tile::T> const& g_o, float* g_lse,
                                           unsigned char* smem, Consumer<Tile>& rows, Work const& work,
                                           Sizes const& sizes) {
  int const warpgroup = own_warpgroup(), first_query = work.query(64 * warpgroup);
  int thread = threadIdx.x % 128;
  forget(thread);  // otherwise its addresses in O would be kept in registers over all row tiles
  unsigned char* s_o = smem + warpgroup * Tile::kQueryBytes;
  rows.softmax.reduce();
  store_lse(g_lse, rows, work, sizes.seq_q, sizes.heads, thread);
  named_barrier_sync(8 + warpgroup, 128);  // all warps have read their Q
  normalize(s_o, rows, thread);
  fence_proxy_async();
  named_barrier_sync(8 + warpgroup, 128);  // O is written
  if (Tile::kPackedSequences && work.query(64 * warpgroup + 64) > work.sequence.queries) {
    store_own<Tile>(g_o, s_o, work, first_query, thread);
  } else if (thread == 0 && first_query < work.sequence.queries) {
    Tile::Outputs::template store<64>(o, shared_address(s_o), work.global_row(first_query), work.head, work.sequence.batch);
    cp_async_bulk_commit();
    cp_async_bulk_wait_read<0>();
  }
  if (Tile::kPersistent && thread == 0) mbarrier_arrive(rows.barriers.query_empty(warpgroup));
}
