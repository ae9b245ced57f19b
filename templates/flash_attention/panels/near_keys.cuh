// Which keys a row tile visits if each query attends a window around its own key: those from the start of the first
// query's window to the end of the last query's.
#pragma once
#include "flash_attention/panels/panels.cuh"
#include "flash_attention/panels/row_tile.cuh"
#include "flash_attention/window.cuh"
#include "types.cuh"

// The Keys of a Tile, as launch parameters. The tiles of a row tile start at the first key of its first query's window,
// which differs between row tiles: the blocks of a cluster have no tiles in common.
template <int BN>
struct NearKeys {
  using Maps = PanelMaps;  // maps of K, or of V

  int const *cu_seqlens_q, *cu_seqlens_k;  // null: sequences are batch entries
  Window window;                           // with causal, `right` is 0

  __device__ __forceinline__ Sequence sequence(int n, int seq_q, int seq_k) const {
    return ::sequence(cu_seqlens_q, cu_seqlens_k, n, seq_q, seq_k);
  }
  template <class Panels>
  static __device__ __forceinline__ void prefetch(Maps const& maps) {
    Panels::prefetch(maps);
  }

  // Tiles of BN keys for `queries` queries from the first on, of a row tile that starts at query `from`: at least one.
  __device__ __forceinline__ int tiles_from(Sequence const& of, int from, int first_query, int queries) const {
    if (first_query >= of.queries) return 1;
    int const keys = window.end(min(first_query + queries, of.queries) - 1, of) - window.begin(from, of);
    return max(1, (keys + BN - 1) / BN);
  }
  __device__ __forceinline__ int tiles(Sequence const& of, int first_query, int queries) const {
    return tiles_from(of, first_query, first_query, queries);
  }
  // End of the sequence's keys, relative to the row tile's first key.
  __device__ __forceinline__ int end(Work const& work) const {
    return work.sequence.keys - window.begin(work.first_query, work.sequence);
  }

  // Loads one of the row tile's key tiles to shared memory.
  template <class Panels>
  __device__ __forceinline__ void load(uint32_t s_tile, Maps const& maps, uint32_t full, Work const& work,
                                       int tile) const {
    Sequence const& of = work.sequence;
    int const row = of.first_key + window.begin(work.first_query, of) + tile * BN;
    Panels::template load<BN, 1>(s_tile, maps, full, row, work.kv_head, of.batch);
  }

  // The thread's columns before `end`, out of 128, as a bit mask: columns 8 n and 8 n + 1 are bits 2 n and 2 n + 1.
  static __device__ __forceinline__ uint32_t before(int end) {
    int const from = max(end, 0), bits = from / 8 * 2 + min(from % 8, 2);
    return bits < 32 ? (1u << bits) - 1 : ~0u;
  }

  // The mask of a warpgroup's rows.
  struct Mask {
    int before_own, behind_own;  // query 0 attends the keys in [-before_own, behind_own)
    int keys;                    // end of the sequence's keys
    int from, to;                // tiles that all rows attend completely

    __device__ __forceinline__ bool cuts(int tile) const { return tile < from || tile >= to; }
    // Sets scores of keys that a thread's two rows, which belong to these queries, do not attend to -inf.
    template <int R>
    __device__ __forceinline__ void hide(float (&r_s)[R], int const (&query)[2], int tile) const {
      int const col = tile * BN + threadIdx.x % 4 * 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int const begin = query[h] - before_own - col, end = min(query[h] + behind_own, keys) - col;
#pragma unroll
        for (int word = 0; word < BN; word += 128) {
          uint32_t const kept = before(end - word) & ~before(begin - word);
#pragma unroll
          for (int bit = 0; bit < 32 && word + 4 * bit < BN; ++bit)
            if (!(kept >> bit & 1)) r_s[word / 2 + bit / 2 * 4 + bit % 2 + 2 * h] = -kInfinity;
        }
      }
    }
  };
  __device__ __forceinline__ Mask mask(Work const& work, int warpgroup) const {
    Sequence const& of = work.sequence;
    int const begin = window.begin(work.first_query, of), own = of.keys - of.queries - begin;  // own key of query 0
    int const first = work.query(64 * warpgroup), last = work.query(64 * warpgroup + 63);
    int const from = (window.begin(last, of) - begin + BN - 1) / BN, to = (window.end(first, of) - begin) / BN;
    return {window.left - own, window.right + own + 1, of.keys - begin, from, to};
  }
};
