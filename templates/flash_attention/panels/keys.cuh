// Which keys a row tile visits, how they arrive, and which of them each row attends: all of its sequence's, or those up
// to its own position.
#pragma once
#include "flash_attention/panels/panels.cuh"
#include "flash_attention/panels/row_tile.cuh"
#include "types.cuh"

// A Tile's Keys, as parameters of the launch: where packed sequences begin, and the last ends; null where they are
// entries of the batch.
template <int BN, bool kCausal, int kCluster>
struct DenseKeys {
  using Maps = PanelMaps;  // of K, or of V

  int const *cu_seqlens_q, *cu_seqlens_k;

  __device__ __forceinline__ Sequence sequence(int n, int seq_q, int seq_k) const {
    return ::sequence(cu_seqlens_q, cu_seqlens_k, n, seq_q, seq_k);
  }

  template <class Panels>
  static __device__ __forceinline__ void prefetch(Maps const& maps) {
    Panels::prefetch(maps);
  }
  // Tiles of BN keys for `queries` queries from the first on. Those that none of the rows attends are left out, but one
  // is visited.
  static __device__ __forceinline__ int tiles(Sequence const& of, int first_query, int queries) {
    int const end = kCausal ? min(of.keys, first_query + queries + (of.keys - of.queries)) : of.keys;
    return first_query < of.queries ? max(1, (end + BN - 1) / BN) : 1;
  }
  // Where the sequence's keys end, from the row tile's first on.
  static __device__ __forceinline__ int end(Work const& work) { return work.sequence.keys; }

  // A tile of the row tile's, to shared memory.
  template <class Panels>
  static __device__ __forceinline__ void load(uint32_t s_tile, Maps const& maps, uint32_t full, Work const& work,
                                              int tile) {
    int const row = work.sequence.first_key + tile * BN;
    Panels::template load<BN, kCluster>(s_tile, maps, full, row, work.kv_head, work.sequence.batch);
  }

  // Of a warpgroup's rows.
  struct Mask {
    int seq_k, ahead;  // keys that query 0 attends: causal, ahead + 1
    int unmasked;      // tiles that all rows attend as a whole

    __device__ __forceinline__ bool cuts(int tile) const { return tile >= unmasked; }
    // Scores of keys that a thread's two rows, which are of these queries, do not attend become -inf.
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
