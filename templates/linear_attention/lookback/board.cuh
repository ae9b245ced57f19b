// How tiles of a row learn from earlier ones what they start from, in one pass: a tile publishes its sum at once, looks
// back for the nearest one that has published its end, which holds everything before, and publishes its own end.
#pragma once
#include "atomic.cuh"
#include "linear_attention/carries.cuh"

enum Flag : int { kNothing, kSum, kEnd };  // what a tile has published
// Tiles that a look back sees at once, and one behind tiles of which all had published: each is a sector of flags.
constexpr int kNear = 8, kFar = 31;

// What the tiles of a channel publish, a tile a stride: sums over a tile alone, pairs of Sum, and ends, in fp64.
template <class Sum, int BK>
struct Board {
  Sum* sums;
  Carry* ends;
  int* flags;
  int64_t stride, flag_stride;

  __device__ __forceinline__ Board(float* sums, float* ends, int* flags, Index const& index, int batch, int channels,
                                   int channel)
      : sums(reinterpret_cast<Sum*>(sums) + int64_t(index.row) * channels + channel),
        ends(reinterpret_cast<Carry*>(ends) + int64_t(index.row) * channels + channel),
        flags(flags + (int64_t(index.row) * ceil_div(channels, BK) * BK + channel) / 32),
        stride(int64_t(batch) * channels),
        flag_stride(int64_t(batch) * ceil_div(channels, BK) * BK / 32) {}

  // These are called by whole warps; lanes without a channel have no value.
  __device__ __forceinline__ void publish_sum(int tile, Sum const& sum, bool active) const {
    if (active) sums[tile * stride] = sum;
    announce(kSum, tile);
  }
  __device__ __forceinline__ void publish_end(int tile, Carry const& end, bool active) const {
    if (active) ends[tile * stride] = end;
    announce(kEnd, tile);
  }
  __device__ __forceinline__ void announce(Flag flag, int tile) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) store_release(flags + tile * flag_stride, int(flag));
  }
  // What `count` tiles from `last` back have published, a lane a tile; it lies open to the whole warp.
  __device__ __forceinline__ Flag published(int last, int count) const {
    int const lane = threadIdx.x % 32;
    int flag = kNothing;
    if (lane < min(count, last + 1)) flag = load_acquire(flags + (last - lane) * flag_stride);
    __syncwarp();
    return Flag(flag);
  }
  __device__ __forceinline__ bool ended(int tile) const {
    return __ballot_sync(0xffffffffu, published(tile, 1) == kEnd);
  }
  // The nearest earlier tile with a published end, once the sums of all tiles between are published too.
  __device__ __forceinline__ int nearest_end(int tile) const {
    for (int last = tile - 1, count = kNear;;) {
      Flag const flag = published(last, count);
      int const end = __ffs(__ballot_sync(0xffffffffu, flag == kEnd)) - 1;
      int const known = __ffs(__ballot_sync(0xffffffffu, flag == kNothing)) - 1;  // lane 31 looks at no tile
      if (0 <= end && end < known) return last - end;
      if (known == 0) backoff();
      last -= known;
      count = known == count ? kFar : kNear;
    }
  }
  // The state before a tile: from the nearest end forward again. Every end is thus made of the one before it, and no
  // bit depends on the order in which blocks run.
  __device__ __forceinline__ Carry look_back(int tile, double beta_tile, bool known, bool active) const {
    int last = known ? tile - 1 : nearest_end(tile);
    if (!active) return {};
    Carry carry = ends[last * stride];
#pragma unroll 8
    while (++last < tile) append(carry, beta_tile, sums[last * stride]);
    return carry;
  }
};

// The state that a tile starts from, and what this tile publishes for later ones. A sequence that begins in the
// tile makes it independent of earlier tiles: its end is published at once, though its first tokens may still wait.
// Where the end before it is `known` already, it publishes its own end instead of its sum.
template <int BT, class Board, class Sum>
__device__ __forceinline__ Carry exchange(Board const& board, Sum const& sum, int tile, float beta, bool cut, bool known,
                                          bool active) {
  if (cut)
    board.publish_end(tile, to_carry(sum), active);
  else if (!known)
    board.publish_sum(tile, sum, active);
  if (tile == 0) return {};
  double const beta_tile = long_power<BT>(beta);
  Carry const carry = board.look_back(tile, beta_tile, known, active);
  Carry end = carry;
  append(end, beta_tile, sum);
  if (!cut) board.publish_end(tile, end, active);
  return carry;
}
