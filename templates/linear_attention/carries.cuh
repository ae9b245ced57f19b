// What tiles start from: the sum of each, then a scan of the sums along every row, a thread a channel.
#pragma once
#include "linear_attention/recurrence.cuh"

// A block's tile: channel block, row of the batch, index along the tokens.
struct Index {
  int channels, row, tile;
};

// All channels of a row of tiles come before the next row.
template <int BK>
__device__ __forceinline__ Index tile_index(int position, int batch, int channels) {
  int const blocks = ceil_div(channels, BK), outer = position / blocks;
  return {position % blocks, outer % batch, outer / batch};
}

// [tiles, B, H · D] pairs (s, n).
__device__ __forceinline__ float2* carry_of(float* carries, Index const& index, int batch, int channels, int channel) {
  return reinterpret_cast<float2*>(carries) + (int64_t(index.tile) * batch + index.row) * channels + channel;
}

// Whether a sequence begins among the tokens of a tile; `next` is the first boundary that no tile passed yet.
template <int BT, bool kVarlen>
__device__ __forceinline__ bool begins(int const* g_boundaries, int boundaries, int& next, int tile) {
  if constexpr (!kVarlen) return tile == 0;
  int const first = next;
  while (next < boundaries - 1 && g_boundaries[next] < (tile + 1) * BT) ++next;
  return next > first;
}

// Replaces the sum of each tile of a row by the state that it starts from, kAhead tiles a load.
template <int BT, int kAhead, bool kVarlen>
__device__ __forceinline__ void scan_carries(float* carries, float beta, int tiles, int row, int batch, int channels,
                                             int channel, int const* g_boundaries, int boundaries) {
  double const factor = long_power<BT>(beta);
  Carry carry = {};
  int next = 0;
  for (int first = 0; first < tiles; first += kAhead) {
    float2 sums[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i < tiles) sums[i] = *carry_of(carries, {0, row, first + i}, batch, channels, channel);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= tiles) continue;
      *carry_of(carries, {0, row, first + i}, batch, channels, channel) = to_pair(to_state(carry));
      append(carry, begins<BT, kVarlen>(g_boundaries, boundaries, next, first + i) ? 0 : factor, sums[i]);
    }
  }
}
