// Decoupled lookback: the tiles of a row get their initial state from earlier tiles in one pass. A tile publishes its
// sum at once, looks back for the nearest tile that has published its end state, which includes everything before, and
// publishes its own end state.
#pragma once
#include "atomic.cuh"
#include "linear_attention/carries.cuh"

enum Flag : int { kNothing, kSum, kEnd };  // what a tile has published
// Tiles that a lookback inspects at once: first kNear, then kFar if all of these had published; each has its own sector.
constexpr int kNear = 8, kFar = 31;

// The values that the tiles of a channel publish, one tile per stride: pairs of Sum over one tile, and end states in
// fp64.
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

  // Called by complete warps; lanes without a channel have no value.
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
  // The flags of `count` tiles from `last` backwards, one tile per lane; uniform over the warp.
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
  // The nearest earlier tile with a published end state, once the sums of all tiles in between are published too.
  __device__ __forceinline__ int nearest_end(int tile) const {
    for (int last = tile - 1, count = kNear;;) {
      Flag const flag = published(last, count);
      int const end = __ffs(__ballot_sync(0xffffffffu, flag == kEnd)) - 1;
      int const known = __ffs(__ballot_sync(0xffffffffu, flag == kNothing)) - 1;  // lane 31 inspects no tile
      if (0 <= end && end < known) return last - end;
      if (known == 0) backoff();
      last -= known;
      count = known == count ? kFar : kNear;
    }
  }
  // The state before a tile: computed forward from the nearest end state. Every end state thus results from the
  // previous one, and no bit depends on the order in which blocks run.
  __device__ __forceinline__ Carry look_back(int tile, double beta_tile, bool known, bool active) const {
    int last = known ? tile - 1 : nearest_end(tile);
    if (!active) return {};
    Carry carry = ends[last * stride];
#pragma unroll 8
    while (++last < tile) append(carry, beta_tile, sums[last * stride]);
    return carry;
  }
};

// The state before a tile, and the values that this tile publishes for later ones. A sequence that starts within the
// tile makes it independent of earlier tiles: its end state is published at once, although its first tokens may still
// wait. If the previous end state is `known` already, the tile publishes its own end state instead of its sum.
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
