// Which keys a row tile visits, how they are loaded, and which of them each row attends: all of its sequence's, or
// those up to its own position.
#pragma once
#include "flash_attention/panels/panels.cuh"
#include "flash_attention/panels/row_tile.cuh"
#include "types.cuh"

// The Keys of a Tile, as launch parameters: the boundaries of packed sequences; null for sequences that are batch
// entries.
template <int BN, bool kCausal, int kCluster>
struct DenseKeys {
  using Maps = PanelMaps;  // maps of K, or of V

  int const *cu_seqlens_q, *cu_seqlens_k;

  __device__ __forceinline__ Sequence sequence(int n, int seq_q, int seq_k) const {
    return ::sequence(cu_seqlens_q, cu_seqlens_k, n, seq_q, seq_k);
  }

  template <class Panels>
  static __device__ __forceinline__ void prefetch(Maps const& maps) {
    Panels::prefetch(maps);
  }
  // Tiles of BN keys for `queries` queries from first_query on. Tiles that none of the rows attends are skipped, but at
  // least one is visited.
  static __device__ __forceinline__ int tiles(Sequence const& of, int first_query, int queries) {
    int const end = kCausal ? min(of.keys, first_query + queries + (of.keys - of.queries)) : of.keys;
    return first_query < of.queries ? max(1, (end + BN - 1) / BN) : 1;
  }
  // End of the sequence's keys, relative to the row tile's first key.
  static __device__ __forceinline__ int end(Work const& work) { return work.sequence.keys; }

  // Loads one of the row tile's key tiles to shared memory.
  template <class Panels>
  static __device__ __forceinline__ void load(uint32_t s_tile, Maps const& maps, uint32_t full, Work const& work,
                                              int tile) {
    int const row = work.sequence.first_key + tile * BN;
    Panels::template load<BN, kCluster>(s_tile, maps, full, row, work.kv_head, work.sequence.batch);
  }

  // The mask of a warpgroup's rows.
  struct Mask {
    int seq_k, ahead;  // keys that query 0 attends; causal: ahead + 1
    int unmasked;      // tiles that all rows attend completely

    __device__ __forceinline__ bool cuts(int tile) const { return tile >= unmasked; }
    // Sets scores of keys that a thread's two rows, which belong to these queries, do not attend to -inf.
    template <int R>
    __device__ __forceinline__ void hide(float (&r_s)[R], int const (&query)[2], int tile) const {
      int const col = tile * BN + threadIdx.x % 4 * 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int const attended = kCausal ? min(seq_k, query[h] + ahead + 1) : seq_k, hidden = attended - col;
#pragma unroll
        for (int e = 2 * h; e < R; e += 4) {
          if (e / 4 * 8 >= hidden) r_s[e] = -kInfinity;
          if (e / 4 * 8 + 1 >= hidden) r_s[e + 1] = -kInfinity;
        }
      }
    }
  };
  static __device__ __forceinline__ Mask mask(Work const& work, int warpgroup) {
    int const seq_k = work.sequence.keys, ahead = seq_k - work.sequence.queries;
    int const causal_end = work.query(64 * warpgroup) + ahead + 1;
    return {seq_k, ahead, (kCausal ? min(seq_k, causal_end) : seq_k) / BN};
  }
};
