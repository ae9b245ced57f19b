// How a block of TMA and wgmma or tcgen05 finds its row tile, or its share of the keys, from the table of lengths.
#pragma once
#include "paged_attention/lengths.cuh"
#include "paged_attention/queries.cuh"
#include "paged_attention/panels/keys.cuh"

// The inputs that determine a block's work; `shares` is passed to the merge.
template <class Tile>
struct Batch {
  Lengths lengths;
  int const* cu_seqlens_q;
  int sequences, heads, kv_heads, seq_q, longest;
  int* shares;

  __device__ __forceinline__ int packed_log2() const {
    int const group = heads / kv_heads;
    return Tile::kPackedHeads == 1 ? 0 : __ffs(min(Tile::kPackedHeads, group & -group)) - 1;
  }
  __device__ __forceinline__ Sequence sequence(int n) const {
    Queries const queries = queries_of(cu_seqlens_q, n, seq_q);
    return {queries.batch, queries.first, queries.count, 0, lengths.of(n)};
  }
  // This block's share of the row tiles of all heads that share their rows. Called by all lanes of a warp.
  __device__ __forceinline__ Share share(int block, int blocks, typename Tile::Keys const& keys) const {
    RowTiles<Tile::BM> const row_tiles{cu_seqlens_q, seq_q, longest, 1 << packed_log2()};
    if constexpr (Tile::kSplits == 1) return whole_tile(block, sequences, row_tiles);
    auto const steps = [&](int n) {  // tiles of keys
      Sequence const of = sequence(n);
      return keys.tiles(of, 0, of.queries);
    };
    return share_among(block, blocks, sequences, steps, row_tiles);
  }
  // Writes the i-th work item to shared memory: without tiles if there is none. Called by all lanes of a warp.
  __device__ __forceinline__ void find(PagedWork& s_work, int i, typename Tile::Keys const& keys) const {
    int const log2 = packed_log2(), sharers = heads >> log2, block = i / sharers, sharer = i - block * sharers;
    Share const found = share(block, gridDim.x / sharers, keys);
    if (threadIdx.x % 32 != 0) return;
    PagedWork work;
    work.tiles = 0;
    if (found.sequence >= 0) {
      work.sequence = sequence(found.sequence);
      int const queries = Tile::BM >> log2, rows = min(work.sequence.queries, longest);
      work.first_query = ((rows - 1) / queries - found.tile) * queries;  // rows that attend the most keys first
      work.sequence.first_key = found.begin * Tile::BN;
      int const end = keys.end(work.sequence, work.first_query, queries);
      work.end = end - work.sequence.first_key;
      work.tiles = max(min(found.end, (end + Tile::BN - 1) / Tile::BN) - found.begin, 1);
      work.packed_log2 = log2;
      work.head = sharer << log2;
      work.kv_head = work.head / (heads / kv_heads);
      work.number = found.sequence;
      work.index = found.index * sharers + sharer;
      work.parts = found.parts;
      if (Tile::kSplits > 1 && found.index == found.first && sharer == 0)
        reinterpret_cast<int2*>(shares)[found.sequence] = make_int2(found.first, found.parts);
    }
    s_work = work;
  }
};
