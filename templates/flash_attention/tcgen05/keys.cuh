// Which keys a row tile on tcgen05 visits, and which of them a thread's row attends: those of panels/keys.cuh.
#pragma once
#include "flash_attention/panels/keys.cuh"

template <int BN, bool kCausal>
struct DenseRowKeys : DenseKeys<BN, kCausal, 1> {
  // Tiles of keys that `rows` rows of the block from row `first` on visit, out of those that the block loads: with a
  // mask, or beyond the last query, not all.
  __device__ __forceinline__ int visited(Work const& work, int first, int rows) const {
    return this->tiles(work.sequence, work.query(first), rows >> work.packed_log2);
  }

  // The mask of a thread's row.
  struct RowMask {
    int attended;  // number of attended keys, from the first on
    int unmasked;  // tiles that all of the warp's rows attend completely

    __device__ __forceinline__ bool cuts(int tile) const { return tile >= unmasked; }
    // Sets scores of keys that the row does not attend to -inf.
    __device__ __forceinline__ void hide(float (&r_s)[BN], int tile) const {
      int const hidden = attended - tile * BN;
#pragma unroll
      for (int e = 0; e < BN; ++e)
        if (e >= hidden) r_s[e] = -kInfinity;
    }
  };
  // The mask of a row of the block; the first row of its warp is `first`.
  __device__ __forceinline__ RowMask row_mask(Work const& work, int row, int first) const {
    Sequence const& of = work.sequence;
    int const ahead = of.keys - of.queries;
    int const attended = kCausal ? min(of.keys, work.query(row) + ahead + 1) : of.keys;
    return {attended, (kCausal ? min(of.keys, work.query(first) + ahead + 1) : of.keys) / BN};
  }
};
