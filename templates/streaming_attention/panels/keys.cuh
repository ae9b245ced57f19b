// Which keys a row tile visits on wgmma, how they are loaded, and which of them each row attends: sinks and a window.
#pragma once
#include "flash_attention/panels/panels.cuh"
#include "flash_attention/panels/row_tile.cuh"
#include "streaming_attention/positions.cuh"
#include "types.cuh"

// Boxes of complete tiles of K or V, and of 16 rows.
struct TileMaps {
  PanelMaps whole, pieces;
};

// The Keys of a Tile, as launch parameters. The keys that a row tile visits are numbered contiguously: first the sinks,
// padded to a multiple of 16 keys, then the keys from the start of its windows. The number of a sink is its position,
// that of another key is its position plus `shift`, which is negative; or 0, if windows start within the padded sinks.
template <int BN, int kCluster>
struct WindowKeys {
  using Maps = TileMaps;
  static constexpr int kPiece = 16;  // keys of the pieces in which clusters share loads

  int window, sinks;
  int const* cache_seqlens;  // null: every sequence has all keys

  __device__ __forceinline__ Sequence sequence(int n, int seq_q, int seq_k) const {
    return {n, 0, seq_q, 0, positions_of<false>(cache_seqlens, n, seq_k)};
  }
  template <class Panels>
  static __device__ __forceinline__ void prefetch(Maps const& maps) {
    Panels::prefetch(maps.whole);
    Panels::prefetch(maps.pieces);
  }

  __device__ __forceinline__ int padded() const { return (sinks + kPiece - 1) / kPiece * kPiece; }
  // The shift of a row tile that starts at this query: at most 0.
  __device__ __forceinline__ int shift(Sequence const& of, int first_query) const {
    return min(padded() - (first_query + of.keys - of.queries - window + 1), 0);
  }
  // Tiles of BN numbered keys for `queries` queries from the first on: at least one.
  __device__ __forceinline__ int tiles(Sequence const& of, int first_query, int queries) const {
    int const end = min(first_query + queries, of.queries) + of.keys - of.queries + shift(of, first_query);
    return max(1, (end + BN - 1) / BN);
  }
  // End of the numbers of the sequence's keys.
  __device__ __forceinline__ int end(Work const& work) const {
    return work.sequence.keys + shift(work.sequence, work.first_query);
  }

  // Loads one of the row tile's key tiles to shared memory. A tile with both sinks and other keys is loaded in pieces,
  // by the blocks of a cluster in turn. Values derived from `work` are not kept between tiles: the loader has few
  // registers.
  template <class Panels>
  __device__ __forceinline__ void load(uint32_t s_tile, Maps const& maps, uint32_t full, Work const& work,
                                       int tile) const {
    int const position = tile * BN, head = work.kv_head, batch = work.sequence.batch;
    int const first = padded(), moved = shift(work.sequence, work.first_query);  // number of keys and their shift
    if (moved == 0 || position >= first || position + BN <= first)
      return Panels::template load<BN, kCluster>(s_tile, maps.whole, full, position < first ? position : position - moved, head,
                                                 batch);
#pragma unroll 1
    for (int row = kCluster == 1 ? 0 : cluster_rank() * kPiece; row < BN; row += kCluster * kPiece) {
      int const key = position + row < first ? position + row : position + row - moved;
      Panels::template load_piece<BN, kCluster>(s_tile, maps.pieces, full, row, key, head, batch);
    }
  }

  // The thread's columns before `end`, out of 128, as a bit mask: columns 8 n and 8 n + 1 are bits 2 n and 2 n + 1.
  static __device__ __forceinline__ uint32_t before(int end) {
    int const from = max(end, 0), bits = from / 8 * 2 + min(from % 8, 2);
    return bits < 32 ? (1u << bits) - 1 : ~0u;
  }

  // The mask of a warpgroup's rows.
  struct Mask {
    int ahead;       // end of the keys that query 0 attends
    int window, sinks;
    int from, to;    // tiles that all rows attend completely; this also holds for tiles before `to` with only sinks

    __device__ __forceinline__ bool cuts(int tile) const {
      return tile >= to || (tile < from && tile >= sinks / BN);
    }
    // Sets scores of keys that a thread's two rows, which belong to these queries, do not attend to -inf.
    template <int R>
    __device__ __forceinline__ void hide(float (&r_s)[R], int const (&query)[2], int tile) const {
      int const col = tile * BN + threadIdx.x % 4 * 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int const end = query[h] + ahead - col, begin = end - window;
#pragma unroll
        for (int word = 0; word < BN; word += 128) {
          int const first = col + word;
          uint32_t const kept = before(end - word) & (before(sinks - first) | ~before(begin - word));
#pragma unroll
          for (int bit = 0; bit < 32 && word + 4 * bit < BN; ++bit)
            if (!(kept >> bit & 1)) r_s[word / 2 + bit / 2 * 4 + bit % 2 + 2 * h] = -kInfinity;
        }
      }
    }
  };
  __device__ __forceinline__ Mask mask(Work const& work, int warpgroup) const {
    Sequence const& of = work.sequence;
    int const ahead = of.keys - of.queries + 1 + shift(of, work.first_query);
    int const begin = work.query(64 * warpgroup + 63) + ahead - window;  // start of the last window
    int const from = begin > sinks ? (begin + BN - 1) / BN : 0;
    return {ahead, window, sinks, from, (work.query(64 * warpgroup) + ahead) / BN};
  }
};
