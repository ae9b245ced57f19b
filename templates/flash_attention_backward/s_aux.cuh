// The gradient of s_aux, a head's logit: the sum of -P · delta over all queries, where P = exp(s_aux - lse) is its
// softmax weight; its value is 0, so dP - delta reduces to -delta.
#pragma once
#include "flash_attention/sequences.cuh"
#include "math.cuh"
#include "thread.cuh"

// The contribution of one query; `logit` is in base 2, as is `shift`.
__device__ __forceinline__ float logit_slope(float logit, float shift, float delta) {
  return -exp2_approx(logit - shift) * delta;
}

// Whether a row of Q belongs to a packed sequence.
__device__ __forceinline__ bool in_sequence(int const* cu_seqlens_q, int boundaries, int row, int rows) {
  int first, count;
  packed_rows_of(first, count, cu_seqlens_q, sequence_of(cu_seqlens_q, boundaries, row), rows);
  return row >= first && row < first + count;
}

// Sum over the block, in a fixed order; `s_sums` has one float per warp.
template <int kThreads>
__device__ __forceinline__ float block_sum(float x, float* s_sums) {
#pragma unroll
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  if (threadIdx.x % 32 == 0) s_sums[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) total += s_sums[warp];
  return total;
}
