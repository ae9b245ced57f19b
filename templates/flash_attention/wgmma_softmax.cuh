// Online softmax of a warpgroup's 64 rows in base 2, in the layout of wgmma's accumulators: a thread holds two rows, and
// element e belongs to row e / 2 % 2 of them.
#pragma once
#include "flash_attention/softmax.cuh"

// 2^x on the FMA pipe, x <= 0: x splits into a whole number and f in [-1/2, 1/2]; the relative error is below 2.9e-06.
// The power is exactly 1 at f = 0, so that the exponent -127 leaves 0 of it: what masked scores must give.
__device__ __forceinline__ float exp2_polynomial(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves the whole number in the low bits
  x = fmaxf(x, -127.0f);
  float const whole = x + kRound, f = x - (whole - kRound);
  float const power = fmaf(fmaf(fmaf(fmaf(0.0095829f, f, 0.0559064f), f, 0.2402410f), f, 0.6931242f), f, 1.0f);
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(whole) << 23));
}

// What exponents are taken relative to; 0 for a row that has attended no key, where -inf would give NaN.
__device__ __forceinline__ float exponent_shift(float max, float scale) { return max == -kInfinity ? 0 : max * scale; }

struct Softmax {
  float max[2] = {-kInfinity, -kInfinity};
  float sum[2] = {0, 0};  // of this thread's columns only, until `reduce`
  float factor[2];        // of what was summed before the newest tile

  // Scores S to P = 2^(scale · S - max), unrounded. Every kPolynomial-th exponential is a polynomial (0: none).
  template <bool kLazy, int kPolynomial, int R>
  __device__ __forceinline__ void exponentiate(float (&r_s)[R], float scale) {
    float shift[2];
    raise_maxima<kLazy>(shift, r_s, scale);
    float total[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < R; ++e) {
      float const x = fmaf(r_s[e], scale, -shift[e / 2 % 2]);
      bool const polynomial = kPolynomial && e % (kPolynomial ? kPolynomial : 1) == 0;
      r_s[e] = polynomial ? exp2_polynomial(x) : exp2_approx(x);
      total[e / 2 % 2] += r_s[e];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = fmaf(sum[h], factor[h], total[h]);
  }

  // Takes in the tile's maxima. kLazy: see raise_max of softmax.cuh.
  template <bool kLazy, int R>
  __device__ __forceinline__ void raise_maxima(float (&shift)[2], float const (&r_s)[R], float scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float even = -kInfinity, odd = -kInfinity;  // two chains of half the latency
#pragma unroll
      for (int e = 2 * h; e < R; e += 8) {
        even = fmaxf(even, fmaxf(r_s[e], r_s[e + 1]));
        odd = fmaxf(odd, fmaxf(r_s[e + 4], r_s[e + 5]));
      }
      float const raised = fmaxf(max[h], quad_max(fmaxf(even, odd)));
      float const kept = kLazy && (raised - max[h]) * scale <= 8 ? max[h] : raised;
      shift[h] = exponent_shift(kept, scale);
      factor[h] = exp2_approx(fmaf(max[h], scale, -shift[h]));
      max[h] = kept;
    }
  }

  __device__ __forceinline__ void reduce() {
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = quad_sum(sum[h]);
  }
  __device__ __forceinline__ float inverse(int h) const { return sum[h] > 0 ? rcp_approx(sum[h]) : 0; }
  // Natural logarithm of the sum of the exponentials; -inf for a row that attended no key.
  __device__ __forceinline__ float lse(int h, float scale) const {
    return (exponent_shift(max[h], scale) + log2_approx(sum[h])) * kLn2;
  }
};

// r_o *= factor, row by row; kLazy: unless it is 1 in all rows of the warp.
template <bool kLazy, int R>
__device__ __forceinline__ void rescale(float (&r_o)[R], float const (&factor)[2]) {
  if (kLazy && !__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
  for (int e = 0; e < R; ++e) r_o[e] *= factor[e / 2 % 2];
}
