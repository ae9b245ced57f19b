// Which rows of which heads a block computes: one row tile, or one after another as blocks become free.
#pragma once
#include "cluster.cuh"
#include "types.cuh"

// A row tile's place in the problem. Where p = 2^packed_log2 heads share it, row r of its BM is query
// first_query + r / p of head + r % p.
struct alignas(16) Work {
  int first_query, packed_log2, head, kv_head, batch;
  int tiles;   // of keys, that it visits from the last to the first; 0: there is no more work
  int loaded;  // of these, for all row tiles of the cluster: as many as the longest visits

  __device__ __forceinline__ int query(int row) const { return first_query + (row >> packed_log2); }
};

// The order of all row tiles: the heaviest of all heads first, within sections of heads whose keys and values stay in
// half of L2. Blocks start in the order of their indices, so that light ones are left for the end. The blocks of a
// cluster compute neighbouring row tiles of a head; one beyond the last query takes part with a single tile.
// Kept in shared memory: the loader has too few registers to divide and to keep what divisions have in common.
template <class Tile>
struct Schedule {
  int rows;     // row tiles of a head, or of the heads that share them; where there are clusters, as many of a cluster
  int heads;    // such heads of one entry of the batch
  int every;    // of all entries
  int section;  // of so many the heaviest come first
  int packed_log2;  // of the heads that share row tiles
  int group;    // query heads of a KV head
  int blocks;   // of the grid
  int seq_q, seq_k;

  __device__ __forceinline__ Schedule(int batch, int all_heads, int kv_heads, int seq_q, int seq_k)
      : blocks(gridDim.x), seq_q(seq_q), seq_k(seq_k) {
    group = all_heads / kv_heads;
    packed_log2 = Tile::kPackedHeads == 1 ? 0 : __ffs(min(Tile::kPackedHeads, group & -group)) - 1;
    rows = ceil_div(seq_q << packed_log2, Tile::BM * Tile::kCluster);
    heads = all_heads >> packed_log2;
    every = heads * batch;
    int const most = min(every, max(1, kKeysInL2 / seq_k) * (group >> packed_log2));
    section = ceil_div(every, ceil_div(every, most));
  }
  // The block's of the cluster's i-th row tiles, to shared memory; no work where there are no more.
  __device__ __forceinline__ void place(Work& s_work, int i) const {
    s_work.tiles = 0;
    if (i >= rows * every) return;
    int const begin = quotient(i, section * rows) * section, within = i - begin * rows;
    int const width = min(section, every - begin), row = quotient(within, width), sharers = begin + within - row * width;
    int const queries = Tile::BM >> packed_log2, first = (Tile::kHeavyFirst ? rows - 1 - row : row) * Tile::kCluster;
    s_work.first_query = (Tile::kCluster == 1 ? first : first + cluster_rank()) * queries;
    s_work.tiles = tiles(s_work.first_query, queries);
    s_work.loaded = s_work.tiles;
    if constexpr (Tile::kCluster > 1)
      for (int r = 0; r < Tile::kCluster; ++r) s_work.loaded = max(s_work.loaded, tiles((first + r) * queries, queries));
    s_work.batch = quotient(sharers, heads);
    s_work.head = (sharers - s_work.batch * heads) << packed_log2;
    s_work.kv_head = quotient(s_work.head, group);
    s_work.packed_log2 = packed_log2;
  }

 private:
  static constexpr int kKeysInL2 = (24 << 20) / (4 * Tile::D);  // with their values, in half of a Hopper GPU's

  // Of what is not negative: a division without signs takes fewer registers.
  __device__ __forceinline__ static int quotient(uint32_t a, uint32_t b) { return a / b; }
  __device__ __forceinline__ static int ceil_div(int a, int b) { return (a + b - 1) / b; }
  // Those that none of the rows attends are left out, but one is visited.
  __device__ __forceinline__ int tiles(int first_query, int queries) const {
    int const end = Tile::kCausal ? min(seq_k, first_query + queries + (seq_k - seq_q)) : seq_k;
    return first_query < seq_q ? max(1, ceil_div(end, Tile::BN)) : 1;
  }
};
