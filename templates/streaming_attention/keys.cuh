// Which keys a query attends: those up to its position that are among the first `sinks` or the last `window`.
#pragma once
#include "flash_attention/rows.cuh"
#include "flash_attention/span.cuh"
#include "types.cuh"

// The keys that queries at the positions first to last attend: before `prefix`, each attends all keys up to its
// position; after it, those in its window. The prefix is the sinks; or all keys, if no window starts after the sinks.
struct Keys {
  static constexpr int kUnlimited = 1 << 30;  // a window that reaches back to key 0 from every position

  int first, last;  // if last < 0, none of them attends a key
  int window, prefix;

  __device__ __forceinline__ Keys(int first, int last, int window, int sinks)
      : first(first), last(last), window(window), prefix(last - window + 1 > sinks ? sinks : max(last + 1, 0)) {}
  // The keys that some of these queries attend.
  __device__ __forceinline__ Keys(Keys const& all, int first, int last)
      : first(first), last(last), window(all.window), prefix(all.prefix) {}

  // The first key of any window; the union of the windows is from there to `last`.
  __device__ __forceinline__ int begin() const { return max(first - window + 1, 0); }

  // The span of the tile of BN keys that starts at `key`, in the prefix or after it; a narrow span starts at a multiple
  // of 16.
  template <int BN, int kNarrow>
  __device__ __forceinline__ Span span(int key) const {
    int const begin = key < prefix ? 0 : max(first - window + 1 - key, 0);
    int const end = min((key < prefix ? min(prefix, last + 1) : last + 1) - key, BN);
    int const at = min(begin / 16 * 16, BN - kNarrow);
    return {begin < end, end <= at + kNarrow, at};
  }

  // Sets scores of keys that a query does not attend to -inf: r_s starts at the key `begin` of the tile at `key`, the
  // lane's scores `column` later. The lane's row 8 i is at position[i], which is 8 more than that of the previous row
  // among kNeighbours.
  template <int kNeighbours, int kM, int kN>
  __device__ __forceinline__ void hide(float (&r_s)[kM][kN][4], int const (&position)[2 * kM], int key, int begin,
                                       int column) const {
    bool const in_prefix = key < prefix;
    int const stretch = key + begin, end = stretch + 8 * kN;
    if (in_prefix && end > prefix) hide_from(r_s, prefix - stretch - column);
    if (end > first + 1 || (!in_prefix && stretch <= last - window))
      hide_outside<kNeighbours>(r_s, position, in_prefix ? kUnlimited : window, stretch + column);
  }

 private:
  // The lane's keys from `end` on.
  template <int kM, int kN>
  static __device__ __forceinline__ void hide_from(float (&r_s)[kM][kN][4], int end) {
#pragma unroll
    for (int e = 0; e < 4 * kN * kM; ++e) {
      int const n = e / 4 % kN;
      if (n * 8 + e % 2 >= end) r_s[e / 4 / kN][n][e % 4] = -kInfinity;
    }
  }
  // The keys outside each row's window; the lane's keys start at `key`. Neighbours, 8 positions apart, share the
  // comparisons of keys that are 8 apart.
  template <int kNeighbours, int kM, int kN>
  static __device__ __forceinline__ void hide_outside(float (&r_s)[kM][kN][4], int const (&position)[2 * kM],
                                                      int window, int key) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      int const last = position[i] - key, first = last - window + 1;
#pragma unroll
      for (int e = 0; e < 2 * kN; ++e) {
        int const j = e / 2 * 8 + e % 2 - i % kNeighbours * 8;
        if (j > last || j < first) r_s[i / 2][e / 2][i % 2 * 2 + e % 2] = -kInfinity;
      }
    }
  }
};

// The tiles of BN keys that contain an attended key: those of the prefix from key 0 on, then those of the windows from
// their start, or from the end of the prefix. No key is in two tiles.
template <int BN>
struct Walk {
  int tiles, prefix_tiles;
  int prefix, window_begin, window_end;  // counted in keys

  __device__ __forceinline__ explicit Walk(Keys const& keys)
      : prefix_tiles(ceil_div(keys.prefix, BN)),
        prefix(keys.prefix),
        window_begin(max(keys.begin(), keys.prefix)),
        window_end(keys.last + 1) {
    tiles = prefix_tiles + ceil_div(max(window_end - window_begin, 0), BN);
  }
  __device__ __forceinline__ int key(int tile) const {
    return tile < prefix_tiles ? tile * BN : window_begin + (tile - prefix_tiles) * BN;
  }
  // End of the attended keys of a tile.
  __device__ __forceinline__ int end(int tile) const { return tile < prefix_tiles ? prefix : window_end; }
};
