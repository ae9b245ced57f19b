// Which rows of which heads a block computes: one row tile, or one after another as blocks become free.
#pragma once
#include "cluster.cuh"
#include "flash_attention/panels/row_tile.cuh"
#include "types.cuh"

struct Sizes {
  int sequences;  // entries of the batch, or packed
  int heads, kv_heads;
  int seq_q, seq_k;  // of all packed sequences
};

// The order of all row tiles: the heaviest of all heads first, within sections of heads whose keys and values stay in
// half of L2. Blocks start in the order of their indices, so that light ones are left for the end. The blocks of a
// cluster compute neighbouring row tiles of a head; one beyond the last query takes part with a single tile. Or, where
// kClusterOfHeads, the same rows of heads of one KV head; results of one beyond the last of these are not stored.
// Kept in shared memory: the loader has too few registers to divide and to keep what divisions have in common.
template <class Tile>
struct Schedule {
  int rows;     // row tiles of a head, or of the heads that share them; where clusters take several, those of clusters
  int heads;    // such heads of one entry of the batch, or as many as clusters take
  int every;    // of all entries, or packed sequences
  int section;  // of so many the heaviest come first
  int packed_log2;  // of the heads that share row tiles
  int group;    // query heads of a KV head
  int takers;   // blocks of the grid, or clusters of them
  int seq_q, seq_k;  // of all packed sequences

  // Of packed sequences the grid says how many row tiles the longest may have.
  __device__ __forceinline__ Schedule(Sizes const& all)
      : takers(gridDim.x / Tile::kCluster), seq_q(all.seq_q), seq_k(all.seq_k) {
    group = all.heads / all.kv_heads;
    packed_log2 = Tile::kPackedHeads == 1 ? 0 : __ffs(min(Tile::kPackedHeads, group & -group)) - 1;
    heads = all.kv_heads * taken_heads();
    every = heads * all.sequences;
    rows = Tile::kPackedSequences ? quotient(takers, every) : ceil_div(seq_q << packed_log2, Tile::BM * kRows);
    int const keys = Tile::kPackedSequences ? ceil_div(seq_k, all.sequences) : seq_k;  // on average
    int const most = min(every, max(1, kKeysInL2 / keys) * taken_heads());
    section = ceil_div(every, ceil_div(every, most));
  }
  // The block's of the cluster's i-th row tiles, to shared memory; no work where there are no more, or where the packed
  // sequence has ended.
  __device__ __forceinline__ void locate_work(Work& s_work, int i, typename Tile::Keys const& keys) const {
    s_work.tiles = 0;
    if (i >= rows * every) return;
    int const begin = quotient(i, section * rows) * section, within = i - begin * rows;
    int const width = min(section, every - begin), row = quotient(within, width), sharers = begin + within - row * width;
    int const queries = Tile::BM >> packed_log2, first = (Tile::kHeavyFirst ? rows - 1 - row : row) * kRows;
    int const n = quotient(sharers, heads);
    Sequence const sequence = keys.sequence(n, seq_q, seq_k);
    if (Tile::kPackedSequences && first * queries >= sequence.queries) return;
    s_work.sequence = sequence;
    s_work.first_query = (kRows == 1 ? first : first + cluster_rank()) * queries;
    s_work.tiles = keys.tiles(sequence, s_work.first_query, queries);
    s_work.loaded = s_work.tiles;
    if constexpr (kRows > 1)
      for (int r = 0; r < kRows; ++r)
        s_work.loaded = max(s_work.loaded, keys.tiles(sequence, (first + r) * queries, queries));
    s_work.packed_log2 = packed_log2;
    take_heads(s_work, sharers - n * heads);
  }

 private:
  static constexpr int kHeads = Tile::kClusterOfHeads ? Tile::kCluster : 1, kRows = Tile::kCluster / kHeads;
  static constexpr int kNoHead = 1 << 30;  // beyond every tensor's last

  static constexpr int kKeysInL2 = (24 << 20) / (2 * (Tile::D + Tile::DV));  // with their values, in half of a Hopper GPU's

  // Of what is not negative: a division without signs takes fewer registers.
  __device__ __forceinline__ static int quotient(uint32_t a, uint32_t b) { return a / b; }
  __device__ __forceinline__ static int ceil_div(int a, int b) { return (a + b - 1) / b; }
  // Heads, or groups that share row tiles, of a KV head; as many as clusters take.
  __device__ __forceinline__ int taken_heads() const { return ceil_div(group >> packed_log2, kHeads); }
  // The block's of the i-th that are taken together.
  __device__ __forceinline__ void take_heads(Work& s_work, int i) const {
    if constexpr (kHeads == 1) {
      s_work.head = i << packed_log2;
      s_work.kv_head = quotient(s_work.head, group);
    } else {
      s_work.kv_head = quotient(i, taken_heads());
      int const own = (i - s_work.kv_head * taken_heads()) * kHeads + int(cluster_rank()) << packed_log2;
      s_work.head = own < group ? s_work.kv_head * group + own : kNoHead;
    }
  }
};
