// Which rows of which heads a block computes: one row tile, or one after another of all that there are.
#pragma once
#include "types.cuh"

struct Sizes {
  int batch, heads, kv_heads, seq_q, seq_k;
};

// A row tile's place in the problem. Row r of its BM is query first_query + r / packed of head + r % packed.
struct Work {
  int first_query, packed, head, kv_head, batch;
  int tiles;  // of keys, that it visits from the last to the first
  int seq_q, seq_k;

  __device__ __forceinline__ int query(int row) const { return first_query + row / packed; }
};

template <class Tile>
struct Schedule {
  Sizes sizes;
  int group;   // query heads of a KV head
  int packed;  // of those, how many share a row tile

  __device__ __forceinline__ explicit Schedule(Sizes const& given) : sizes(given) {
    group = given.heads / given.kv_heads;
    packed = Tile::kPackedHeads == 1 ? 1 : min(Tile::kPackedHeads, group & -group);
  }
  // Of the `sharers`-th so many heads. Tiles of keys that none of its rows attends are left out, but one is visited.
  __device__ __forceinline__ Work at(int row_tile, int sharers, int batch) const {
    int const queries = Tile::BM / packed, seq_q = sizes.seq_q, seq_k = sizes.seq_k;
    int const attended = Tile::kCausal ? min(seq_k, (row_tile + 1) * queries + (seq_k - seq_q)) : seq_k;
    int const tiles = max(1, (attended + Tile::BN - 1) / Tile::BN), head = sharers * packed;
    return {row_tile * queries, packed, head, head / group, batch, tiles, seq_q, seq_k};
  }
  __device__ __forceinline__ static int in_order(int row_tile, int count) {
    return Tile::kHeavyFirst ? count - 1 - row_tile : row_tile;
  }

  // The block's work, piece by piece: `visit(work, parity)`, with the parity of the piece's number.
  template <class Visit>
  __device__ __forceinline__ void each(Visit visit) const {
    if constexpr (!Tile::kPersistent) {
      visit(at(in_order(blockIdx.x, gridDim.x), blockIdx.y, blockIdx.z), 0);
    } else {
      int const rows = (sizes.seq_q * packed + Tile::BM - 1) / Tile::BM, heads = sizes.heads / packed;
      int const every = heads * sizes.batch;
      // Heads at a time whose keys and values stay in L2: within them the heaviest row tiles of all come first.
      int const section = max(1, min(every, kKeysInL2 / sizes.seq_k));
      int parity = 0;
#pragma unroll 1
      for (int i = blockIdx.x; i < rows * every; i += gridDim.x, parity ^= 1) {
        int const first = i / (section * rows) * section, within = i - first * rows;
        int const width = min(section, every - first), head = first + within % width;
        visit(at(in_order(within / width, rows), head % heads, head / heads), parity);
      }
    }
  }

 private:
  static constexpr int kKeysInL2 = (24 << 20) / (4 * Tile::D);  // with their values, in half of a Hopper GPU's
};
