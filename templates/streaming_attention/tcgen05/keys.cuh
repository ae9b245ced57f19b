// Which numbered keys a row tile on tcgen05 visits, and which of them a thread's row attends: those of panels/keys.cuh.
#pragma once
#include "streaming_attention/panels/keys.cuh"

template <int BN>
struct WindowRowKeys : WindowKeys<BN, 1> {
  // Tiles that each row tile visits: the same number for all row tiles of the block, whose positions have one shift.
  __device__ __forceinline__ int visited(Work const& work, int, int) const { return work.tiles; }

  // The mask of a thread's row.
  struct RowMask {
    int begin, end;  // its window, in key numbers
    int sinks;
    // tiles that all of the warp's rows attend completely; this also holds for tiles before `to` with only sinks
    int from, to;

    __device__ __forceinline__ bool cuts(int tile) const { return tile >= to || (tile < from && tile >= sinks / BN); }
    // Sets scores of keys that the row does not attend to -inf.
    __device__ __forceinline__ void hide(float (&r_s)[BN], int tile) const {
      int const position = tile * BN;
#pragma unroll
      for (int word = 0; word < BN; word += 32) {
        int const first = position + word;
        uint32_t const kept = before(end - first) & (before(sinks - first) | ~before(begin - first));
#pragma unroll
        for (int bit = 0; bit < 32 && word + bit < BN; ++bit)
          if (!(kept >> bit & 1)) r_s[word + bit] = -kInfinity;
      }
    }
    // The first `end` of 32 numbered keys, as a bit mask.
    static __device__ __forceinline__ uint32_t before(int end) {
      return end >= 32 ? ~0u : (1u << max(end, 0)) - 1;
    }
  };
  // The mask of a row of the block; the first row of its warp is `first`.
  __device__ __forceinline__ RowMask row_mask(Work const& work, int row, int first) const {
    Sequence const& of = work.sequence;
    int const ahead = of.keys - of.queries + 1 + this->shift(of, work.first_query), end = work.query(row) + ahead;
    int const last_begin = work.query(first + 31) + ahead - this->window;
    int const from = last_begin > this->sinks ? (last_begin + BN - 1) / BN : 0;
    return {end - this->window, end, this->sinks, from, (work.query(first) + ahead) / BN};
  }
};
