// Online softmax in base 2 by a thread that holds a row's scores of a tile of keys: no lane asks another but for a vote.
#pragma once
#include "flash_attention/exp2_polynomial.cuh"
#include "flash_attention/softmax.cuh"

// In four chains that run side by side, of two elements a step: sm_100 has a maximum of three.
template <int N>
__device__ __forceinline__ float largest(float const (&r_s)[N]) {
  float peak[4] = {r_s[0], r_s[1], r_s[2], r_s[3]};
#pragma unroll
  for (int e = 4; e + 7 < N; e += 8)
#pragma unroll
    for (int c = 0; c < 4; ++c) peak[c] = fmaxf(fmaxf(peak[c], r_s[e + c]), r_s[e + 4 + c]);
#pragma unroll
  for (int e = (N - 4) / 8 * 8 + 4; e < N; ++e) peak[e % 4] = fmaxf(peak[e % 4], r_s[e]);
  return fmaxf(fmaxf(peak[0], peak[1]), fmaxf(peak[2], peak[3]));
}

struct RowSoftmax {
  float max = kLowest;  // in units of the exponent: scale · score, base 2
  float sum = 0;
  float factor = 1;    // of what was summed before the newest tile, where the maximum was raised
  bool raised = true;  // by the newest tile, in one of the warp's rows

  // Scores S to P = 2^(scale · S - max), unrounded. Every kPolynomial-th exponential is a polynomial (0: none). kLazy:
  // a maximum is raised only when it grows by more than a factor of 2^8 of exponentials; until then sums in fp32 are
  // as exact.
  template <bool kLazy, int kPolynomial, int N>
  __device__ __forceinline__ void exponentiate(float (&r_s)[N], float scale) {
    float const peak = largest(r_s) * scale;
    raised = !kLazy || __any_sync(0xffffffff, peak - max > 8);
    if (raised) {
      float const grown = kLazy && peak - max <= 8 ? max : fmaxf(max, peak);
      factor = exp2_approx(max - grown);
      sum *= factor;
      max = grown;
    }
    float total[4] = {};
#pragma unroll
    for (int e = 0; e < N; ++e) {
      float const x = fmaf(r_s[e], scale, -max);
      bool const polynomial = kPolynomial && e % (kPolynomial ? kPolynomial : 1) == 0;
      r_s[e] = polynomial ? exp2_polynomial(x) : exp2_approx(x);
      total[e % 4] += r_s[e];
    }
    sum += (total[0] + total[1]) + (total[2] + total[3]);
  }

  __device__ __forceinline__ float inverse() const { return sum > 0 ? rcp_approx(sum) : 0; }
  // Natural logarithm of the sum of the exponentials; -inf for a row that attended no key.
  __device__ __forceinline__ float lse() const { return (max + log2_approx(sum)) * kLn2; }
};
