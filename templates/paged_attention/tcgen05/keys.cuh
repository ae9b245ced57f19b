// Which keys of a sequence's pages a row tile on tcgen05 visits, and which of them a thread's row attends: those of
// panels/keys.cuh, with the mask of streaming_attention.
#pragma once
#include "paged_attention/panels/keys.cuh"
#include "streaming_attention/tcgen05/keys.cuh"

template <int BN>
struct PagedRowKeys : PagedKeys<BN> {
  using RowMask = typename WindowRowKeys<BN>::RowMask;

  // Tiles of the share that `rows` rows of the block from row `first` on visit. All row tiles of the block have the
  // same shift.
  __device__ __forceinline__ int visited(Work const& work, int first, int rows) const {
    Sequence const& of = work.sequence;
    int const query = work.query(first), ahead = of.keys - of.queries + this->shift(of, work.first_query) - of.first_key;
    int const end = query + (rows >> work.packed_log2) + ahead;
    return query < of.queries ? max(1, min((end + BN - 1) / BN, work.tiles)) : 1;
  }
  // The mask of a row of the block, for the numbered keys of the share; its warp's first row is `first`.
  __device__ __forceinline__ RowMask row_mask(Work const& work, int row, int first) const {
    Sequence const& of = work.sequence;
    int const ahead = of.keys - of.queries + 1 + this->shift(of, work.first_query) - of.first_key;
    int const end = work.query(row) + ahead, sinks = this->sinks - of.first_key;
    int const last_begin = work.query(first + 31) + ahead - this->window;
    int const from = last_begin > sinks ? (max(last_begin, 0) + BN - 1) / BN : 0;
    return {end - this->window, end, sinks, from, (work.query(first) + ahead) / BN};
  }
};
