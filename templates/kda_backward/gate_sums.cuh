// The gradients of the gate's parameters: the contributions of every token, added in an order that does not depend on
// scheduling.
#pragma once
#include "kda/token.cuh"
#include "thread.cuh"

// A block sums the rows of one head, which are [2, K]: to dt_bias, then to A_log, both channel by channel.
template <int K, int kThreads>
struct GateSums {
  static constexpr int kColumns = 2 * K;
  static constexpr int kGroups = kThreads / kColumns;  // groups of threads; each processes every kGroups-th row
  static constexpr int kBytes = 4 * kThreads;
  static_assert(kThreads % 32 == 0 && kGroups > 0, "a row is at most one element a thread");

  static __device__ __forceinline__ void run(float const* g_rows, int64_t rows, float* g_rate, float* g_bias,
                                             float* s_sums) {
    int const column = threadIdx.x % kColumns, group = threadIdx.x / kColumns;
    float sum = 0;
    if (group < kGroups) {
#pragma unroll 8
      for (int64_t row = group; row < rows; row += kGroups) sum += g_rows[row * kColumns + column];
    }
    s_sums[threadIdx.x] = sum;
    __syncthreads();
    if (group == 0) {
      for (int other = 1; other < kGroups; ++other) sum += s_sums[other * kColumns + column];
      if (column >= K) s_sums[column] = sum;
      if (column < K && g_bias) g_bias[column] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    float all = 0;
    for (int channel = threadIdx.x; channel < K; channel += 32) all += s_sums[K + channel];
    all = warp_sum(all);
    if (threadIdx.x == 0) *g_rate = all;
  }
};
