// Which rows of which heads a block computes: one row tile, or several as blocks become free.
#pragma once
#include "cluster.cuh"
#include "flash_attention/panels/row_tile.cuh"
#include "types.cuh"

struct Sizes {
  int sequences;  // batch entries, or packed sequences
  int heads, kv_heads;
  int seq_q, seq_k;  // totals over all packed sequences
};

// The order of all row tiles: the heaviest of all heads first, within sections of heads whose keys and values fit half
// of L2. Blocks start in the order of their indices, so that light row tiles run last. The blocks of a cluster compute
// adjacent row tiles of a head; one beyond the last query participates with a single tile. With kClusterOfHeads, they
// compute the same rows of several heads of one KV head; results beyond the last head are not stored. The schedule is
// in shared memory: the loader has too few registers for divisions and their common subexpressions.
template <class Tile>
struct Schedule {
  // row tiles of a head, or of the heads that share them; in clusters of row tiles, the number of clusters
  int rows;
  int heads;    // such heads, or clusters of them, per batch entry
  int every;    // over all batch entries, or packed sequences
  int section;  // heads within which the heaviest row tiles come first
  int packed_log2;  // log2 of the heads that share row tiles
  int group;    // query heads per KV head
  int takers;   // blocks of the grid, or clusters of them
  int seq_q, seq_k;  // totals over all packed sequences

  // With packed sequences, the grid defines the maximum number of row tiles of a sequence.
  __device__ __forceinline__ Schedule(Sizes const& all)
      : takers(gridDim.x / Tile::kCluster), seq_q(all.seq_q), seq_k(all.seq_k) {
    group = all.heads / all.kv_heads;
    packed_log2 = Tile::kPackedHeads == 1 ? 0 : __ffs(min(Tile::kPackedHeads, group & -group)) - 1;
    heads = all.kv_heads * taken_heads();
    every = heads * all.sequences;
    rows = Tile::kPackedSequences ? quotient(takers, every) : ceil_div(seq_q << packed_log2, Tile::BM * kRows);
    int const keys = Tile::kPackedSequences ? ceil_div(seq_k, all.sequences) : seq_k;  // average number of keys
    int const most = min(every, max(1, kKeysInL2 / keys) * taken_heads());
    section = ceil_div(every, ceil_div(every, most));
  }
  // Writes this block's row tile of the cluster's i-th work item to shared memory; no work after the last item, or
  // beyond the end of the packed sequence.
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
  static constexpr int kNoHead = 1 << 30;  // an index beyond every tensor's last head

  // Number of keys that fit, with their values, in half of a Hopper GPU's L2.
  static constexpr int kKeysInL2 = (24 << 20) / (2 * (Tile::D + Tile::DV));

  // The operands must not be negative: an unsigned division needs fewer registers.
  __device__ __forceinline__ static int quotient(uint32_t a, uint32_t b) { return a / b; }
  __device__ __forceinline__ static int ceil_div(int a, int b) { return (a + b - 1) / b; }
  // Heads, or groups that share row tiles, of a KV head; or clusters of them.
  __device__ __forceinline__ int taken_heads() const { return ceil_div(group >> packed_log2, kHeads); }
  // This block's head of the i-th group of heads computed together.
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
