// Which keys of a sequence's pages a row tile visits on wgmma, where their boxes lie, and which of them each row
// attends.
#pragma once
#include "flash_attention/panels/panels.cuh"
#include "flash_attention/panels/row_tile.cuh"
#include "paged_attention/pages.cuh"
#include "streaming_attention/panels/keys.cuh"

// What a block computes: a row tile, or a share of its keys. `sequence.first_key` is the position of the share's first.
struct PagedWork : Work {
  int number;        // of the sequence, also where queries are packed
  int index, parts;  // of the share among all, and of those that the row tile has
  int end;           // no row attends a key of the share from there on
};

// Where a box begins; page -1 is none: TMA fills in zeros.
struct BoxInPage {
  int page = -1, row = 0;
};

// A Tile's Keys. A row tile visits places, as those of WindowKeys: sinks, then keys from where its windows begin. Both
// begin where a box does, which has `box` rows of one page, a power of two that divides BN.
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
  // What a key's place is later than its position, behind the sinks: 0 or less.
  __device__ __forceinline__ int shift(Sequence const& of, int first_query) const {
    int const begin = max(first_query + of.keys - of.queries - window + 1, 0);
    return min(padded() - (begin & -box), 0);
  }
  // The position after the last key that `queries` queries attend from the first on.
  __device__ __forceinline__ int end(Sequence const& of, int first_query, int queries) const {
    return min(first_query + queries, of.queries) + of.keys - of.queries + shift(of, first_query);
  }
  // Tiles of places for these: at least one.
  __device__ __forceinline__ int tiles(Sequence const& of, int first_query, int queries) const {
    return max(1, (end(of, first_query, queries) + BN - 1) / BN);
  }
  // The position in the share after the sequence's last key.
  __device__ __forceinline__ int end(Work const& work) const {
    Sequence const& of = work.sequence;
    return max(of.keys + shift(of, work.first_query) - of.first_key, 0);
  }
  // Of the box at a position of the share, if any row attends it: other entries of the table are arbitrary.
  __device__ __forceinline__ BoxInPage box_in_page(PagedWork const& work, Table const& table, int position) const {
    if (position >= work.end) return {};
    int const at = work.sequence.first_key + position;
    int const key = at < padded() ? at : at - shift(work.sequence, work.first_query);
    return {table.page(key), table.row(key)};
  }

  // Of a warpgroup's rows, by places of the share.
  __device__ __forceinline__ Mask mask(Work const& work, int warpgroup) const {
    Sequence const& of = work.sequence;
    int const ahead = of.keys - of.queries + 1 + shift(of, work.first_query) - of.first_key;
    int const begin = work.query(64 * warpgroup + 63) + ahead - window;  // of the last window
    int const last_sink = sinks - of.first_key;
    int const from = begin > last_sink ? (max(begin, 0) + BN - 1) / BN : 0;
    return {ahead, window, last_sink, from, (work.query(64 * warpgroup) + ahead) / BN};
  }
};
