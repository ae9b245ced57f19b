// The state before each tile: the sum of each tile, then a scan of the sums along every row, one thread per channel.
#pragma once
#include "linear_attention/recurrence.cuh"

// A block's tile: channel block, row of the batch, index along the tokens.
struct Index {
  int channels, row, tile;
};

// All channel blocks of a row of tiles come before the next row.
template <int BK>
__device__ __forceinline__ Index tile_index(int position, int batch, int channels) {
  int const blocks = ceil_div(channels, BK), outer = position / blocks;
  return {position % blocks, outer % batch, outer / batch};
}

// [tiles, B, H · D] pairs (s, n).
__device__ __forceinline__ float2* carry_of(float* carries, Index const& index, int batch, int channels, int channel) {
  return reinterpret_cast<float2*>(carries) + (int64_t(index.tile) * batch + index.row) * channels + channel;
}

// Whether a packed sequence starts within a tile; `next` is the first boundary not passed by previous tiles.
template <int BT>
__device__ __forceinline__ bool begins(int const* g_boundaries, int boundaries, int& next, int tile) {
  int const first = next;
  while (next < boundaries - 1 && g_boundaries[next] < (tile + 1) * BT) ++next;
  return next > first;
}

// The sums of kAhead tiles of a row from `first` on; 0 after the last.
template <int kAhead>
__device__ __forceinline__ void load_sums(float2 (&sums)[kAhead], float* carries, int first, int tiles, int row,
                                          int batch, int channels, int channel) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    sums[i] = {};
    if (first + i < tiles) sums[i] = *carry_of(carries, {0, row, first + i}, batch, channels, channel);
  }
}

// Replaces the sum of each tile of a row by the state before it, kAhead tiles per load, while the next ones are in
// flight. No tile is skipped, the last ones store nothing: a branch per tile would serialize the conversions to fp64 of
// one tile after the sums of another.
template <int BT, int kAhead, bool kVarlen>
__device__ __forceinline__ void scan_carries(float* carries, float beta, int tiles, int row, int batch, int channels,
                                             int channel, int const* g_boundaries, int boundaries) {
  double const factor = long_power<BT>(beta);
  Carry carry = {};
  int next = 0;
  float2 sums[kAhead], later[kAhead];
  load_sums(sums, carries, 0, tiles, row, batch, channels, channel);
  for (int first = 0; first < tiles; first += kAhead) {
    load_sums(later, carries, first + kAhead, tiles, row, batch, channels, channel);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      float2 const start = to_pair(to_state(carry));
      if (kVarlen && begins<BT>(g_boundaries, boundaries, next, first + i)) carry = {};
      append(carry, factor, sums[i]);
      if (first + i < tiles) *carry_of(carries, {0, row, first + i}, batch, channels, channel) = start;
      sums[i] = later[i];
    }
  }
}
