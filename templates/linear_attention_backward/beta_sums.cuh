// The gradient of β: the contributions of every tile, or sequence, added in an order that does not depend on
// scheduling.
#pragma once
#include "linear_attention/recurrence.cuh"
#include "thread.cuh"

// A block sums the parts [rows, H · D] of one head, channel by channel, and over the channels too if they share β.
template <Decay DECAY, int D, int kThreads>
__device__ __forceinline__ void sum_betas(float* g_beta, float const* g_parts, int64_t rows, int heads,
                                          double* s_sums) {
  int const head = blockIdx.x;
  int64_t const channels = int64_t(heads) * D;
  double shared = 0;
  for (int channel = threadIdx.x; channel < D; channel += kThreads) {
    float const* g_part = g_parts + int64_t(head) * D + channel;
    double own = 0;
#pragma unroll 8
    for (int64_t row = 0; row < rows; ++row) own += g_part[row * channels];
    if constexpr (DECAY == Decay::channel) g_beta[int64_t(head) * D + channel] = float(own);
    shared += own;
  }
  if constexpr (DECAY != Decay::channel) {
    s_sums[threadIdx.x] = shared;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) s_sums[threadIdx.x] += s_sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) g_beta[head] = float(s_sums[0]);
  }
}
