// How the blocks of a launch share the sequences of a batch: each takes one stretch of one sequence's keys, and no
// stretch is longer than it has to be, however different the lengths are.
#pragma once
#include "flash_attention/rows.cuh"
#include "types.cuh"

// Steps `begin` to before `end` of a sequence, which is part `part` of `parts`; `index` counts the parts of all
// sequences.
struct Share {
  int sequence;  // negative: the block has none
  int part, parts, index;
  int begin, end;
};

// Parts of a sequence of which each has up to `most` steps: one at least, which an empty sequence has too.
__device__ __forceinline__ int parts_of(int steps, int most) { return max(ceil_div(steps, most), 1); }

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

// The least number of steps a part with which there are no more than `blocks` parts. `steps(b)`: of sequence b. All
// lanes of a warp call it.
template <class Steps>
__device__ __forceinline__ int steps_a_part(int batch, int blocks, Steps const& steps) {
  int const lane = threadIdx.x % 32;
  int longest = 1, all = 0;
#pragma unroll 1
  for (int b = lane; b < batch; b += 32) {
    int const of_it = steps(b);
    longest = max(longest, of_it);
    all += of_it;
  }
  longest = __reduce_max_sync(0xffffffff, longest);
  all = __reduce_add_sync(0xffffffff, all);
  // A part more than its share of steps is what each sequence may have.
  int least = max(ceil_div(all, blocks), 1), most = blocks > batch ? ceil_div(all, blocks - batch) : longest;
  most = max(min(most, longest), least);
#pragma unroll 1
  for (int tried = least; least < most; tried = (least + most) / 2) {
    int parts = 0;
#pragma unroll 1
    for (int b = lane; b < batch; b += 32) parts += parts_of(steps(b), tried);
    if (int(__reduce_add_sync(0xffffffff, parts)) <= blocks)
      most = tried;
    else
      least = tried + 1;
  }
  return most;
}

// Which share block `block` takes of those that have kSplits · batch blocks. All lanes of a warp call it.
template <int kSplits, class Steps>
__device__ __forceinline__ Share share_of(int block, int batch, Steps const& steps) {
  if constexpr (kSplits == 1) return {block, 0, 1, block, 0, steps(block)};
  int const lane = threadIdx.x % 32, most = steps_a_part(batch, kSplits * batch, steps);
  int before = 0;  // parts of the sequences before
#pragma unroll 1
  for (int first = 0; first < batch; first += 32) {
    int const mine = first + lane < batch ? steps(first + lane) : -1;
    int const parts = mine < 0 ? 0 : parts_of(mine, most);
    int const past = before + sum_up_to_lane(parts);  // of the lane's sequence and those before it
    unsigned const later = __ballot_sync(0xffffffff, past > block);
    if (later) {
      int const found = __ffs(later) - 1;
      int const all = __shfl_sync(0xffffffff, parts, found), end = __shfl_sync(0xffffffff, mine, found);
      int const part = block - __shfl_sync(0xffffffff, past - parts, found);
      return {first + found, part, all, block, part * most, min((part + 1) * most, end)};
    }
    before = __shfl_sync(0xffffffff, past, 31);
  }
  return {-1, 0, 0, block, 0, 0};
}
