// Which keys a row tile on tcgen05 visits, and which of them a thread's row attends: those of panels/near_keys.cuh.
#pragma once
#include "flash_attention/panels/near_keys.cuh"

template <int BN>
struct NearRowKeys : NearKeys<BN> {
  // Tiles of keys that `rows` rows of the block from row `first` on visit, out of those that the block loads.
  __device__ __forceinline__ int visited(Work const& work, int first, int rows) const {
    return this->tiles_from(work.sequence, work.first_query, work.query(first), rows >> work.packed_log2);
  }

  // The mask of a thread's row.
  struct RowMask {
    int begin, end;  // keys that the row attends
    int from, to;    // tiles that all of the warp's rows attend completely

    __device__ __forceinline__ bool cuts(int tile) const { return tile < from || tile >= to; }
    // Sets scores of keys that the row does not attend to -inf.
    __device__ __forceinline__ void hide(float (&r_s)[BN], int tile) const {
#pragma unroll
      for (int word = 0; word < BN; word += 32) {
        int const first = tile * BN + word;
        uint32_t const kept = before(end - first) & ~before(begin - first);
#pragma unroll
        for (int bit = 0; bit < 32 && word + bit < BN; ++bit)
          if (!(kept >> bit & 1)) r_s[word + bit] = -kInfinity;
      }
    }
    // The first `end` of 32 keys, as a bit mask.
    static __device__ __forceinline__ uint32_t before(int end) {
      return end >= 32 ? ~0u : (1u << max(end, 0)) - 1;
    }
  };
  // The mask of a row of the block; the first row of its warp is `first`.
  __device__ __forceinline__ RowMask row_mask(Work const& work, int row, int first) const {
    Sequence const& of = work.sequence;
    Window const& window = this->window;
    int const begin = window.begin(work.first_query, of), query = work.query(row);
    int const from = (window.begin(work.query(first + 31), of) - begin + BN - 1) / BN;
    int const to = (window.end(work.query(first), of) - begin) / BN;
    return {window.begin(query, of) - begin, window.end(query, of) - begin, from, to};
  }
};
