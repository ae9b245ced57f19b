// Which rows of which heads a block computes: one row tile, or one after another as blocks become free.
#pragma once
#include "cluster.cuh"
#include "flash_attention/sequences.cuh"
#include "types.cuh"

// A row tile's place in the problem. Where p = 2^packed_log2 heads share it, row r of its BM is query
// first_query + r / p of head + r % p.
struct alignas(16) Work {
  Sequence sequence;
  int first_query, packed_log2, head, kv_head;
  int tiles;   // of keys, that it visits from the last to the first; 0: there is no more work
  int loaded;  // of these, for all row tiles of the cluster: as many as the longest visits

  __device__ __forceinline__ int query(int row) const { return first_query + (row >> packed_log2); }
  // Where it lies in q, o and lse.
  __device__ __forceinline__ int64_t place(int query) const { return sequence.first_query + query; }
};

// Where packed sequences begin, and the last ends; null where they are entries of the batch.
struct PackedBounds {
  int const *cu_seqlens_q, *cu_seqlens_k;

  __device__ __forceinline__ Sequence sequence(int n, int seq_q, int seq_k) const {
    return ::sequence(cu_seqlens_q, cu_seqlens_k, n, seq_q, seq_k);
  }
};

// The order of all row tiles: the heaviest of all heads first, within sections of heads whose keys and values stay in
// half of L2. Blocks start in the order of their indices, so that light ones are left for the end. The blocks of a
// cluster compute neighbouring row tiles of a head; one beyond the last query takes part with a single tile.
// Kept in shared memory: the loader has too few registers to divide and to keep what divisions have in common.
template <class Tile>
struct Schedule {
  int rows;     // row tiles of a head, or of the heads that share them; where there are clusters, as many of a cluster
  int heads;    // such heads of one entry of the batch
  int every;    // of all entries, or packed sequences
  int section;  // of so many the heaviest come first
  int packed_log2;  // of the heads that share row tiles
  int group;    // query heads of a KV head
  int takers;   // blocks of the grid, or clusters of them
  int seq_q, seq_k;  // of all packed sequences

  // `sequences`: entries of the batch, or packed. Of those the grid says how many row tiles the longest may have.
  __device__ __forceinline__ Schedule(int sequences, int all_heads, int kv_heads, int seq_q, int seq_k)
      : takers(gridDim.x / Tile::kCluster), seq_q(seq_q), seq_k(seq_k) {
    group = all_heads / kv_heads;
    packed_log2 = Tile::kPackedHeads == 1 ? 0 : __ffs(min(Tile::kPackedHeads, group & -group)) - 1;
    heads = all_heads >> packed_log2;
    every = heads * sequences;
    rows = Tile::kPackedSequences ? quotient(takers, every) : ceil_div(seq_q << packed_log2, Tile::BM * Tile::kCluster);
    int const keys = Tile::kPackedSequences ? ceil_div(seq_k, sequences) : seq_k;  // on average
    int const most = min(every, max(1, kKeysInL2 / keys) * (group >> packed_log2));
    section = ceil_div(every, ceil_div(every, most));
  }
  // The block's of the cluster's i-th row tiles, to shared memory; no work where there are no more, or where the packed
  // sequence has ended.
  __device__ __forceinline__ void place(Work& s_work, int i, PackedBounds const& bounds) const {
    s_work.tiles = 0;
    if (i >= rows * every) return;
    int const begin = quotient(i, section * rows) * section, within = i - begin * rows;
    int const width = min(section, every - begin), row = quotient(within, width), sharers = begin + within - row * width;
    int const queries = Tile::BM >> packed_log2, first = (Tile::kHeavyFirst ? rows - 1 - row : row) * Tile::kCluster;
    int const n = quotient(sharers, heads);
    Sequence const sequence = bounds.sequence(n, seq_q, seq_k);
    if (Tile::kPackedSequences && first * queries >= sequence.queries) return;
    s_work.sequence = sequence;
    s_work.first_query = (Tile::kCluster == 1 ? first : first + cluster_rank()) * queries;
    s_work.tiles = tiles(sequence, s_work.first_query, queries);
    s_work.loaded = s_work.tiles;
    if constexpr (Tile::kCluster > 1)
      for (int r = 0; r < Tile::kCluster; ++r)
        s_work.loaded = max(s_work.loaded, tiles(sequence, (first + r) * queries, queries));
    s_work.head = (sharers - n * heads) << packed_log2;
    s_work.kv_head = quotient(s_work.head, group);
    s_work.packed_log2 = packed_log2;
  }

 private:
  static constexpr int kKeysInL2 = (24 << 20) / (4 * Tile::D);  // with their values, in half of a Hopper GPU's

  // Of what is not negative: a division without signs takes fewer registers.
  __device__ __forceinline__ static int quotient(uint32_t a, uint32_t b) { return a / b; }
  __device__ __forceinline__ static int ceil_div(int a, int b) { return (a + b - 1) / b; }
  // Those that none of the rows attends are left out, but one is visited.
  __device__ __forceinline__ static int tiles(Sequence const& of, int first_query, int queries) {
    int const end = Tile::kCausal ? min(of.keys, first_query + queries + (of.keys - of.queries)) : of.keys;
    return first_query < of.queries ? max(1, ceil_div(end, Tile::BN)) : 1;
  }
};
