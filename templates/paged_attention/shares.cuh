// How the blocks of a launch split the sequences of a batch: each computes one range of one sequence's keys, and no
// range is longer than necessary, for any lengths.
#pragma once
#include "flash_attention/rows.cuh"
#include "types.cuh"

// Steps [begin, end) of a sequence, which is part `part` of `parts`; `index` numbers the parts of all sequences. If the
// rows of a sequence form several tiles, `tile` is the index of the tile, and `first` is the index of its first part.
struct Share {
  int sequence;  // negative: the block has none
  int part, parts, index;
  int begin, end;
  int tile, first;
};

// Number of parts of a sequence with up to `most` steps each: at least one, even for an empty sequence.
__device__ __forceinline__ int parts_of(int steps, int most) { return max(ceil_div(steps, most), 1); }

// Row tiles per sequence, if every sequence has one.
struct OneTile {
  static constexpr bool kOne = true;

  __device__ __forceinline__ int of(int) const { return 1; }
};

// Inclusive prefix sum of `value` over the warp's lanes.
__device__ __forceinline__ int sum_up_to_lane(int value) {
  int const lane = threadIdx.x % 32;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    int const other = __shfl_up_sync(0xffffffff, value, lanes);
    if (lane >= lanes) value += other;
  }
  return value;
}

// The minimum number of steps per part with which there are at most `blocks` parts. `steps(b)`: number of steps of
// sequence b, for each of its tiles.of(b) row tiles. Called by all lanes of a warp.
template <class Steps, class Tiles>
__device__ __forceinline__ int steps_a_part(int batch, int blocks, Steps const& steps, Tiles const& tiles) {
  int const lane = threadIdx.x % 32;
  int longest = 1, all = 0, least_parts = 0;
  float size = 0;  // steps of all sequences, which might overflow int32
#pragma unroll 1
  for (int b = lane; b < batch; b += 32) {
    int const of_it = steps(b), rows = tiles.of(b);
    longest = max(longest, of_it);
    all += of_it * rows;
    size += float(of_it) * rows;
    least_parts += rows;
  }
  longest = __reduce_max_sync(0xffffffff, longest);
  if (!Tiles::kOne && __any_sync(0xffffffff, size > 0x1p25f)) return longest;  // there are enough blocks
  all = __reduce_add_sync(0xffffffff, all);
  least_parts = Tiles::kOne ? batch : int(__reduce_add_sync(0xffffffff, least_parts));
  // Each tile may have one more part than its share of steps.
  int least = max(ceil_div(all, blocks), 1), most = blocks > least_parts ? ceil_div(all, blocks - least_parts) : longest;
  most = max(min(most, longest), least);
#pragma unroll 1
  for (int tried = least; least < most; tried = (least + most) / 2) {
    int parts = 0;
#pragma unroll 1
    for (int b = lane; b < batch; b += 32) parts += parts_of(steps(b), tried) * tiles.of(b);
    if (int(__reduce_add_sync(0xffffffff, parts)) <= blocks)
      most = tried;
    else
      least = tried + 1;
  }
  return most;
}

// The share of block `block` out of `blocks`. Called by all lanes of a warp.
template <class Steps, class Tiles>
__device__ __forceinline__ Share share_among(int block, int blocks, int batch, Steps const& steps, Tiles const& tiles) {
  int const lane = threadIdx.x % 32, most = steps_a_part(batch, blocks, steps, tiles);
  int before = 0;  // parts of the previous sequences
#pragma unroll 1
  for (int first = 0; first < batch; first += 32) {
    int const mine = first + lane < batch ? steps(first + lane) : -1;
    int const parts = mine < 0 ? 0 : parts_of(mine, most), all = mine < 0 ? 0 : parts * tiles.of(first + lane);
    int const past = before + sum_up_to_lane(all);  // end of the parts of the lane's sequence and the previous ones
    unsigned const later = __ballot_sync(0xffffffff, past > block);
    if (later) {
      int const found = __ffs(later) - 1;
      int const each = __shfl_sync(0xffffffff, parts, found), end = __shfl_sync(0xffffffff, mine, found);
      int const own = __shfl_sync(0xffffffff, past - all, found), tile = Tiles::kOne ? 0 : (block - own) / each;
      int const part = block - own - tile * each;
      return {first + found, part, each, block, part * most, min((part + 1) * most, end), tile, own};
    }
    before = __shfl_sync(0xffffffff, past, 31);
  }
  return {-1, 0, 0, block, 0, 0, 0, 0};
}

// The share of a block out of kSplits · batch blocks if each sequence has one row tile.
template <int kSplits, class Steps>
__device__ __forceinline__ Share share_of(int block, int batch, Steps const& steps) {
  if constexpr (kSplits == 1) return {block, 0, 1, block, 0, steps(block), 0, block};
  return share_among(block, kSplits * batch, batch, steps, OneTile{});
}
