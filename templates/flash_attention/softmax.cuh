// Online softmax in base 2 over tiles of scores in registers: maxima, sums, and rescaling of previous results.
#pragma once
#include "math.cuh"
#include "types.cuh"

// Initial value of a maximum: below all scores, and finite, so that a row that attends no key needs no special case.
constexpr float kLowest = -3.402823466e38f;

// State of a lane's rows, 16 m + 8 h + lane / 4. `max` is in units of the exponent: scale · score, base 2. `sum` covers
// only this lane's columns until quad_sum.
template <int kM>
struct RowState {
  float max[kM][2];
  float sum[kM][2];
};

template <int kM>
__device__ __forceinline__ void reset(RowState<kM>& state) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    state.max[i / 2][i % 2] = kLowest;
    state.sum[i / 2][i % 2] = 0;
  }
}

// The maximum over the 4 lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// The largest score of each row in the tile: -inf if no key is attended.
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

// Updates the running maxima with `peak`, the maxima of the tile's scores, and rescales the previous sums. kLazy: only
// when a maximum of one of the warp's rows grows by more than a factor of 2^8 of exponentials; until then sums in fp32
// are as exact.
template <bool kLazy, int kM, int kN>
__device__ __forceinline__ void raise_max(RowState<kM>& state, float (&r_o)[kM][kN][4], float const (&peak)[kM][2],
                                          float scale) {
  bool grows = !kLazy;
#pragma unroll
  for (int i = 0; i < 2 * kM && kLazy; ++i) grows |= peak[i / 2][i % 2] * scale - state.max[i / 2][i % 2] > 8;
  if (kLazy && !__any_sync(0xffffffff, grows)) return;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float const raised = fmaxf(state.max[m][h], peak[m][h] * scale);
      float const factor = exp2_approx(state.max[m][h] - raised);
      state.max[m][h] = raised;
      state.sum[m][h] *= factor;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        r_o[m][n][2 * h] *= factor;
        r_o[m][n][2 * h + 1] *= factor;
      }
    }
}

// P = 2^(scale · S - max), rounded to T as operands A of 16 keys each; r_p may have room for more. Adds the unrounded P
// to the sums.
template <class T, int kM, int kN>
__device__ __forceinline__ void exponentiate(uint32_t (*r_p)[kM][4], RowState<kM>& state, float const (&r_s)[kM][kN][4],
                                             float scale) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float const shift = state.max[m][h];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        float const p0 = exp2_approx(fmaf(r_s[m][n][2 * h], scale, -shift));
        float const p1 = exp2_approx(fmaf(r_s[m][n][2 * h + 1], scale, -shift));
        state.sum[m][h] += p0 + p1;
        r_p[n / 2][m][n % 2 * 2 + h] = pack<T>(p0, p1);
      }
    }
}
