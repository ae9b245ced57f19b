// Which keys a query attends: those up to its position that are among the first `sinks` or the last `window`.
#pragma once
#include "flash_attention/rows.cuh"

// What queries at the positions first to last attend, together and each.
struct Keys {
  int first, last;  // none of them attends a key where last < 0
  int window, sinks;

  // The first key of any window; the windows together reach from there to `last`.
  __device__ __forceinline__ int begin() const { return max(first - window + 1, 0); }
  // Whether any query attends any of `count` keys from `key` on.
  __device__ __forceinline__ bool any(int key, int count) const {
    return key <= last && (key + count > first - window + 1 || key < sinks);
  }
  // Whether every query attends all of them.
  __device__ __forceinline__ bool all(int key, int count) const {
    return key + count <= first + 1 && (key > last - window || key + count <= sinks);
  }
};

// The keys of queries row to row + rows - 1, as far as they exist.
__device__ __forceinline__ Keys keys_of(int row, int rows, int seq_q, int seq_k, int window, int sinks) {
  int const before = seq_k - seq_q;
  return {row + before, row < seq_q ? min(row + rows, seq_q) - 1 + before : -1, window, sinks};
}

// The tiles of BN keys that hold an attended key: those of the sinks from key 0 on, then those of the windows from
// where these begin, or where the tiles of the sinks end. No key is in two tiles.
template <int BN>
struct Walk {
  int tiles, sink_tiles;
  int begin, window_begin, window_end;  // keys: of the windows; of their tiles
  int sinks;

  __device__ __forceinline__ explicit Walk(Keys const& keys) {
    begin = keys.begin();
    sinks = keys.sinks;
    sink_tiles = ceil_div(min(sinks, begin), BN);
    window_begin = max(begin, sink_tiles * BN);
    window_end = keys.last + 1;
    tiles = sink_tiles + ceil_div(max(window_end - window_begin, 0), BN);
  }
  __device__ __forceinline__ int key(int tile) const {
    return tile < sink_tiles ? tile * BN : window_begin + (tile - sink_tiles) * BN;
  }
  // Past the last key of the tile that anyone attends.
  __device__ __forceinline__ int end(int tile) const {
    return tile < sink_tiles && begin >= (tile + 1) * BN ? sinks : window_end;
  }
};

// Scores of keys that a query does not attend become -inf. `position`: of the lane's queries, rows 8 i of the tile; its
// keys begin at `key`.
template <int kM, int kN>
__device__ __forceinline__ void mask(float (&r_s)[kM][kN][4], int const (&position)[2 * kM], int key, int window,
                                     int sinks) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    int const last = position[i] - key, first = last - window + 1, sink_end = sinks - key;
#pragma unroll
    for (int e = 0; e < 2 * kN; ++e) {
      int const j = e / 2 * 8 + e % 2;
      if (j > last || (j < first && j >= sink_end)) r_s[i / 2][e / 2][i % 2 * 2 + e % 2] = -kInfinity;
    }
  }
}
