// Online softmax of a warpgroup's 64 rows in base 2, in the layout of wgmma accumulators: a thread holds two rows, and
// element e belongs to row e / 2 % 2 of them.
#pragma once
#include "flash_attention/exp2_polynomial.cuh"
#include "flash_attention/softmax.cuh"

__device__ __forceinline__ int bits(float x) { return int(__float_as_uint(x)); }

// The maximum, or minimum, of three integers, a single instruction on sm_90.
template <bool kLargest>
__device__ __forceinline__ int extreme(int a, int b, int c) {
  int const either = (b > c) == kLargest ? b : c;
  return (a > either) == kLargest ? a : either;
}

// The maximum, or minimum, of the bits of a row's scores: its elements are 2 h and 2 h + 1 of every 4.
template <bool kLargest, int R>
__device__ __forceinline__ int extreme_bits(float const (&r_s)[R], int h) {
  int even = bits(r_s[2 * h]), odd = bits(r_s[2 * h + 4]);  // two chains of half the latency
#pragma unroll
  for (int e = 2 * h; e < R; e += 8) {
    even = extreme<kLargest>(even, bits(r_s[e]), bits(r_s[e + 1]));
    odd = extreme<kLargest>(odd, bits(r_s[e + 4]), bits(r_s[e + 5]));
  }
  return (even > odd) == kLargest ? even : odd;
}

struct Softmax {
  float max[2] = {kLowest, kLowest};  // running maxima in units of the exponent: scale · score, base 2
  float sum[2] = {0, 0};              // sums over this thread's columns only, until `reduce`
  float factor[2] = {1, 1};           // rescaling factors of the previous sums, if maxima were raised
  int bound[2] = {kNone, kNone};      // kLazy: bits of the smallest score at which a maximum may have to be raised
  bool raised = true;                 // whether the newest tile raised the maximum of any of the warp's rows

  static constexpr int kNone = -2147483647 - 1;  // below the bits of every score

  // Converts scores S to P = 2^(scale · S - max), unrounded. Every kPolynomial-th exponential is computed with a
  // polynomial (0: none).
  template <bool kLazy, int kPolynomial, int R>
  __device__ __forceinline__ void exponentiate(float (&r_s)[R], float scale) {
    int const most[2] = {extreme_bits<true>(r_s, 0), extreme_bits<true>(r_s, 1)};
    raised = !kLazy || __any_sync(0xffffffff, most[0] >= bound[0] || most[1] >= bound[1]);
    if (raised) raise_maxima<kLazy>(r_s, most, scale);
#pragma unroll
    for (int e = 0; e < R; ++e) {
      float const x = fmaf(r_s[e], scale, -max[e / 2 % 2]);
      bool const polynomial = kPolynomial && e % (kPolynomial ? kPolynomial : 1) == 0;
      r_s[e] = polynomial ? exp2_polynomial(x) : exp2_approx(x);
    }
    float total[2] = {r_s[0] + r_s[1], r_s[2] + r_s[3]};
#pragma unroll
    for (int e = 4; e < R; ++e) total[e / 2 % 2] += r_s[e];
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] += total[h];
  }

  // Updates the running maxima with those of the tile. kLazy: only for rows that grow by more than a factor of 2^8 of
  // exponentials; until then sums in fp32 are as exact. For nonnegative numbers, the order of bits equals that of the
  // numbers, and bits of negative numbers are less: among these, the largest number has the smallest bits.
  template <bool kLazy, int R>
  __device__ __forceinline__ void raise_maxima(float const (&r_s)[R], int const (&most)[2], float scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int const least = extreme_bits<false>(r_s, h);
      float const peak = quad_max(__uint_as_float(most[h] >= 0 ? most[h] : least)) * scale;
      float const grown = kLazy && peak - max[h] <= 8 ? max[h] : fmaxf(max[h], peak);
      factor[h] = exp2_approx(max[h] - grown);
      sum[h] *= factor[h];
      max[h] = grown;
      // A negative bound could not be compared as an integer: every tile of such a row is processed.
      float const score = (grown + 8) * rcp_approx(scale);
      bound[h] = score >= 0 ? bits(score) : kNone;
    }
  }

  __device__ __forceinline__ void reduce() {
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = quad_sum(sum[h]);
  }
  __device__ __forceinline__ float inverse(int h) const { return sum[h] > 0 ? rcp_approx(sum[h]) : 0; }
  // Natural logarithm of the sum of the exponentials; -inf for a row that attended no key.
  __device__ __forceinline__ float lse(int h) const { return (max[h] + log2_approx(sum[h])) * kLn2; }
};

// r_o *= factor, row by row.
template <int R>
__device__ __forceinline__ void rescale(float (&r_o)[R], float const (&factor)[2]) {
#pragma unroll
  for (int e = 0; e < R; ++e) r_o[e] *= factor[e / 2 % 2];
}
