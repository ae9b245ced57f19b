// Online softmax in base 2 over tiles of scores in registers: maxima, sums, and the scaling of what came before.
#pragma once
#include "flash_attention/steps.cuh"
#include "math.cuh"
#include "types.cuh"

// Of a lane's rows, 16 m + 8 h + lane / 4. `sum` covers this lane's columns only, until quad_sum.
template <int kM>
struct RowState {
  float max[kM][2];
  float sum[kM][2];
};

template <int kM>
__device__ __forceinline__ void reset(RowState<kM>& state) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    state.max[i / 2][i % 2] = -kInfinity;
    state.sum[i / 2][i % 2] = 0;
  }
}

// Over the 4 lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// The largest score of each row in the tile: -inf where no key is attended.
template <int kM, int kN>
__device__ __forceinline__ void row_max(float (&peak)[kM][2], float const (&r_s)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = -kInfinity;
#pragma unroll
      for (int n = 0; n < kN; ++n) largest = fmaxf(largest, fmaxf(r_s[m][n][2 * h], r_s[m][n][2 * h + 1]));
      peak[m][h] = quad_max(largest);
    }
}

// What exponents are taken relative to; 0 for a row that has attended no key, where -inf would give NaN.
__device__ __forceinline__ float exponent_shift(float max, float scale) { return max == -kInfinity ? 0 : max * scale; }

// Takes the tile's maxima in, and gives the factors for what was summed under the old ones. kLazy: a maximum that grows
// by less than a factor of 2^8 of exponentials is left, which is as exact in fp32 and saves the scaling of O.
template <bool kLazy, int kM>
__device__ __forceinline__ void raise_max(RowState<kM>& state, float (&factor)[kM][2], float const (&peak)[kM][2],
                                          float scale) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    float const old = state.max[i / 2][i % 2], raised = fmaxf(old, peak[i / 2][i % 2]);
    bool const keep = kLazy && (raised - old) * scale <= 8;
    float const max = keep ? old : raised;
    factor[i / 2][i % 2] = exp2_approx(old * scale - exponent_shift(max, scale));
    state.max[i / 2][i % 2] = max;
    state.sum[i / 2][i % 2] *= factor[i / 2][i % 2];
  }
}

// r_o *= factor, row by row; kLazy: unless it is 1 in all rows of the warp.
template <bool kLazy, int kM, int kN>
__device__ __forceinline__ void rescale(float (&r_o)[kM][kN][4], float const (&factor)[kM][2]) {
  bool needed = !kLazy;
#pragma unroll
  for (int i = 0; i < 2 * kM && kLazy; ++i) needed |= factor[i / 2][i % 2] != 1;
  if (kLazy && !__any_sync(0xffffffff, needed)) return;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) r_o[m][n][e] *= factor[m][e / 2];
}

// P = 2^(scale · S - max), rounded to T as operands A of 16 keys each; adds the unrounded P to the sums. P of steps
// that are not visited stays undefined.
template <class T, int kM, int kN, class Steps = EveryStep>
__device__ __forceinline__ void exponentiate(uint32_t (&r_p)[kN / 2][kM][4], RowState<kM>& state,
                                             float const (&r_s)[kM][kN][4], float scale, Steps visited = {}) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float const shift = exponent_shift(state.max[m][h], scale);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        if (!visited(n / 2)) continue;
        float const p0 = exp2_approx(r_s[m][n][2 * h] * scale - shift);
        float const p1 = exp2_approx(r_s[m][n][2 * h + 1] * scale - shift);
        state.sum[m][h] += p0 + p1;
        r_p[n / 2][m][n % 2 * 2 + h] = pack<T>(p0, p1);
      }
    }
}
