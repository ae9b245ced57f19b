// Which keys of a sequence's pages a row tile visits on wgmma, the locations of their boxes, and which of them each row
// attends.
#pragma once
#include "flash_attention/panels/panels.cuh"
#include "flash_attention/panels/row_tile.cuh"
#include "paged_attention/pages.cuh"
#include "streaming_attention/panels/keys.cuh"

// A block's work item: a row tile, or a share of its keys. `sequence.first_key` is the position of the first key of the
// share.
struct PagedWork : Work {
  int number;        // index of the sequence, also if queries are packed
  int index, parts;  // index of the share among all, and number of parts of the row tile
  int end;           // no row attends a key of the share from here on
};

// Start of a box; page -1 is none: TMA fills the box with zeros.
struct BoxInPage {
  int page = -1, row = 0;
};

// The Keys of a Tile. The keys that a row tile visits are numbered contiguously, as in WindowKeys: sinks, then keys
// from the start of its windows. Both start at the start of a box, which has `box` rows of one page, a power of two
// that divides BN.
template <int BN>
struct PagedKeys {
  using Maps = PanelMaps;
  using Mask = typename WindowKeys<BN, 1>::Mask;
  static constexpr int kLeastBox = 8;

  int window, sinks, box;

  template <class Panels>
  static __device__ __forceinline__ void prefetch(Maps const& maps) {
    Panels::prefetch(maps);
  }

  __device__ __forceinline__ int padded() const { return (sinks + box - 1) & -box; }
  // Difference between a key's number and its position, after the sinks: at most 0.
  __device__ __forceinline__ int shift(Sequence const& of, int first_query) const {
    int const begin = max(first_query + of.keys - of.queries - window + 1, 0);
    return min(padded() - (begin & -box), 0);
  }
  // End of the numbers of the keys that `queries` queries from the first on attend.
  __device__ __forceinline__ int end(Sequence const& of, int first_query, int queries) const {
    return min(first_query + queries, of.queries) + of.keys - of.queries + shift(of, first_query);
  }
  // Tiles of numbered keys for these queries: at least one.
  __device__ __forceinline__ int tiles(Sequence const& of, int first_query, int queries) const {
    return max(1, (end(of, first_query, queries) + BN - 1) / BN);
  }
  // End of the sequence's keys, relative to the share.
  __device__ __forceinline__ int end(Work const& work) const {
    Sequence const& of = work.sequence;
    return max(of.keys + shift(of, work.first_query) - of.first_key, 0);
  }
  // The box at a position of the share, if any row attends it: other entries of the table are arbitrary.
  __device__ __forceinline__ BoxInPage box_in_page(PagedWork const& work, Table const& table, int position) const {
    if (position >= work.end) return {};
    int const at = work.sequence.first_key + position;
    int const key = at < padded() ? at : at - shift(work.sequence, work.first_query);
    return {table.page(key), table.row(key)};
  }

  // The mask of a warpgroup's rows, for the numbered keys of the share.
  __device__ __forceinline__ Mask mask(Work const& work, int warpgroup) const {
    Sequence const& of = work.sequence;
    int const ahead = of.keys - of.queries + 1 + shift(of, work.first_query) - of.first_key;
    int const begin = work.query(64 * warpgroup + 63) + ahead - window;  // start of the last window
    int const last_sink = sinks - of.first_key;
    int const from = begin > last_sink ? (max(begin, 0) + BN - 1) / BN : 0;
    return {ahead, window, last_sink, from, (work.query(64 * warpgroup) + ahead) / BN};
  }
};
