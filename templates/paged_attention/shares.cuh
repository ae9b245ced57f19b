// How the blocks of a launch share the sequences of a batch: each takes one stretch of one sequence's keys, and no
// stretch is longer than it has to be, however different the lengths are.
#pragma once
#include "flash_attention/rows.cuh"
#include "types.cuh"

// Steps `begin` to before `end` of a sequence, which is part `part` of `parts`; `index` counts the parts of all
// sequences. Of a sequence whose rows are several tiles, `tile` says of which, and `first` is the index of its first
// part.
struct Share {
  int sequence;  // negative: the block has none
  int part, parts, index;
  int begin, end;
  int tile, first;
};

// Parts of a sequence of which each has up to `most` steps: one at least, which an empty sequence has too.
__device__ __forceinline__ int parts_of(int steps, int most) { return max(ceil_div(steps, most), 1); }

// Tiles of rows of a sequence, where there is one of each.
struct OneTile {
  static constexpr bool kOne = true;

  __device__ __forceinline__ int of(int) const { return 1; }
};

// Of `value`, the sum over the warp's lanes up to this one.
__device__ __forceinline__ int sum_up_to_lane(int value) {
  int const lane = threadIdx.x % 32;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    int const other = __shfl_up_sync(0xffffffff, value, lanes);
    if (lane >= lanes) value += other;
  }
  return value;
}

// The least number of steps a part with which there are no more than `blocks` parts. `steps(b)`: of sequence b, for
// each of its tiles.of(b) tiles of rows. All lanes of a warp call it.
template <class Steps, class Tiles>
__device__ __forceinline__ int steps_a_part(int batch, int blocks, Steps const& steps, Tiles const& tiles) {
  int const lane = threadIdx.x % 32;
  int longest = 1, all = 0, least_parts = 0;
  float size = 0;  // of all, which int32 might not hold
#pragma unroll 1
  for (int b = lane; b < batch; b += 32) {
    int const of_it = steps(b), rows = tiles.of(b);
    longest = max(longest, of_it);
    all += of_it * rows;
    size += float(of_it) * rows;
    least_parts += rows;
  }
  longest = __reduce_max_sync(0xffffffff, longest);
  if (!Tiles::kOne && __any_sync(0xffffffff, size > 0x1p25f)) return longest;  // there are blocks enough
  all = __reduce_add_sync(0xffffffff, all);
  least_parts = Tiles::kOne ? batch : int(__reduce_add_sync(0xffffffff, least_parts));
  // A part more than its share of steps is what each tile may have.
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

// Which share block `block` of `blocks` takes. All lanes of a warp call it.
template <class Steps, class Tiles>
__device__ __forceinline__ Share share_among(int block, int blocks, int batch, Steps const& steps, Tiles const& tiles) {
  int const lane = threadIdx.x % 32, most = steps_a_part(batch, blocks, steps, tiles);
  int before = 0;  // parts of the sequences before
#pragma unroll 1
  for (int first = 0; first < batch; first += 32) {
    int const mine = first + lane < batch ? steps(first + lane) : -1;
    int const parts = mine < 0 ? 0 : parts_of(mine, most), all = mine < 0 ? 0 : parts * tiles.of(first + lane);
    int const past = before + sum_up_to_lane(all);  // of the lane's sequence and those before it
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

// The same of kSplits · batch blocks, where each sequence has one tile of rows.
template <int kSplits, class Steps>
__device__ __forceinline__ Share share_of(int block, int batch, Steps const& steps) {
  if constexpr (kSplits == 1) return {block, 0, 1, block, 0, steps(block), 0, block};
  return share_among(block, kSplits * batch, batch, steps, OneTile{});
}
