// The work of a block, for any multiply instruction: its share of a sequence, from the lengths to O or parts of it.
#pragma once
#include "flash_attention/products.cuh"
#include "mla_decode/attend.cuh"
#include "paged_attention/mma_sync/block_rows.cuh"
#include "paged_attention/lengths.cuh"
#include "paged_attention/merge.cuh"
#include "paged_attention/shares.cuh"

// The arguments of a kernel; strides in elements.
template <class T>
struct Decode {
  View<T const> q;
  Cache<T> cache;
  int const* block_table;
  int64_t table_stride, page_stride;  // strides between sequences, and between pages
  Lengths lengths;
  View<T> o;
  float *lse, *part_o, *part_rows;
  int* shares;
  int batch, heads, seq_q, page_size;
  float scale;  // scale of scores, in base 2
};
// Constructs Decode from the parameters of a kernel, which have the names of arguments and workspaces.
#define DECODE_GIVEN                                                                                                   \
  Decode<T> {                                                                                                          \
    {q, q_batch_stride, q_seq_q_stride, q_heads_stride}, {kv_cache, kv_cache_pages_stride, kv_cache_page_size_stride}, \
        block_table, block_table_batch_stride, block_table_max_pages_stride,                                           \
        {cache_seqlens, cache_seqlens_batch_stride, max_pages * page_size},                                            \
        {o, o_batch_stride, o_seq_q_stride, o_heads_stride}, lse, part_o, part_rows, shares, batch, heads, seq_q,      \
        page_size, softmax_scale * kLog2e                                                                              \
  }

// One share of one sequence for one row tile. Attend: AttendOnMma or AttendOnWgmma.
template <class Tile, class Attend, int kSplits>
__device__ __forceinline__ void decode(unsigned char* smem, Decode<typename Tile::T> const& given) {
  int const all_rows = given.seq_q * given.heads, row_tiles = ceil_div(all_rows, Tile::BM);
  int const row_tile = blockIdx.x % row_tiles;
  Share const share = share_of<kSplits>(blockIdx.x / row_tiles, given.batch,
                                        [&](int b) { return ceil_div(given.lengths.of(b), Tile::BN); });
  if (share.sequence < 0) return;
  int const b = share.sequence, before = given.lengths.of(b) - given.seq_q;
  PackedRows const rows{row_tile * Tile::BM, all_rows, given.heads, b, 0, given.heads, given.seq_q};
  int const last_row = min(Tile::BM, rows.count - rows.row0) - 1, end = rows.query(last_row) + before + 1;
  uint32_t const s_block = shared_address(smem);
  LatentRing<Tile> ring(table_of(given.block_table + b * given.table_stride, given.page_stride, given.page_size),
                        given.cache, share.begin * Tile::BN, min(share.end * Tile::BN, end), s_block + Tile::kRing);
  BlockCoord const at = Tile::coord();

  float r_o[Tile::kM][Tile::kN][4];
  RowState<Tile::kM> state;
  load_queries<Tile>(s_block, given.q, rows);
  ring.fill();
  clear(r_o);
  reset(state);
  Attend::run(r_o, state, smem, Visible<Tile>(rows, before, at), given.scale, ring, at);
  cp_async_wait<0>();
  __syncthreads();  // from here on, all shared memory is free
  if (share.parts == 1) {
    RowsOfHeads<typename Tile::T> const o{rows, given.o.at(b, 0, 0), given.o.row_stride, given.o.head_stride};
    RowsOfHeads<float> const lse{rows, given.lse + int64_t(b) * all_rows, 1, given.seq_q};
    store_rows<Tile>(o, lse, smem, r_o, state, at);
  } else {
    int64_t const first = int64_t(share.index - b) * all_rows;
    auto const item_of = [=](int row) { return first + rows.item(row); };
    store_parts<Tile>(rows, given.part_o, given.part_rows, item_of, smem, r_o, state, at);
  }
  if (kSplits > 1 && share.part == 0 && row_tile == 0 && threadIdx.x == 0)
    reinterpret_cast<int2*>(given.shares)[b] = make_int2(share.index, share.parts);
}

// Merges 4 elements of a row of O from its parts, if its sequence has several.
template <class Tile>
__device__ __forceinline__ void merge(Decode<typename Tile::T> const& given) {
  int64_t const apart = int64_t(given.heads) * given.seq_q;
  Results<typename Tile::T, Tile::DV> const results{given.o, given.lse, given.part_o, given.part_rows,
                                                    given.batch * apart};
  auto const where = [&](int, int first, int, int query, int head) {
    return PartRows{first * apart + head * given.seq_q + query, apart};
  };
  merge_shares<Tile::kThreads>(results, given.shares, nullptr, given.batch, given.heads, given.seq_q, given.seq_q,
                               where);
}
