// Online softmax in base 2 by a thread that holds a row's scores of a tile of keys: without exchange between lanes
// except for a vote.
#pragma once
#include "flash_attention/exp2_polynomial.cuh"
#include "flash_attention/softmax.cuh"
#include "pair.cuh"

__device__ __forceinline__ float2 both(float x) { return {x, x}; }

// 2^x of two numbers on the FMA pipe: see exp2_polynomial.
__device__ __forceinline__ float2 exp2_polynomial(float2 x) {
  x = {fmaxf(x.x, kExp2Least), fmaxf(x.y, kExp2Least)};
  float2 const whole = add_pair(x, both(kExp2Round));
  float2 const f = fma_pair(add_pair(whole, both(-kExp2Round)), both(-1), x);
  float2 power = both(kExp2Fourth);
  power = fma_pair(power, f, both(kExp2Third));
  power = fma_pair(power, f, both(kExp2Second));
  power = fma_pair(power, f, both(kExp2First));
  power = fma_pair(power, f, both(1));
  return {__uint_as_float(__float_as_uint(power.x) + (__float_as_uint(whole.x) << 23)),
          __uint_as_float(__float_as_uint(power.y) + (__float_as_uint(whole.y) << 23))};
}

// The maximum is computed in four independent chains of two elements per step: sm_100 has a three-input maximum.
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
  float max = kLowest;  // running maximum in units of the exponent: scale · score, base 2
  float sum = 0;
  float factor = 1;    // rescaling factor of the previous sums, if the maximum was raised
  bool raised = true;  // whether the newest tile raised the maximum of any of the warp's rows

  // Converts scores S to P = 2^(scale · S - max), unrounded. Every kPolynomial-th pair is computed with polynomials (0:
  // none). kLazy: a maximum is raised only when it grows by more than a factor of 2^8 of exponentials; until then sums
  // in fp32 are as exact.
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
    float2 total[2] = {};
#pragma unroll
    for (int e = 0; e < N; e += 2) {
      float2 const x = fma_pair({r_s[e], r_s[e + 1]}, both(scale), both(-max));
      bool const polynomial = kPolynomial && e / 2 % (kPolynomial ? kPolynomial : 1) == 0;
      float2 const p = polynomial ? exp2_polynomial(x) : float2{exp2_approx(x.x), exp2_approx(x.y)};
      total[e / 2 % 2] = add_pair(total[e / 2 % 2], p);
      r_s[e] = p.x;
      r_s[e + 1] = p.y;
    }
    total[0] = add_pair(total[0], total[1]);
    sum += total[0].x + total[0].y;
  }

  __device__ __forceinline__ float inverse() const { return sum > 0 ? rcp_approx(sum) : 0; }
  // Natural logarithm of the sum of the exponentials; -inf for a row that attended no key.
  __device__ __forceinline__ float lse() const { return (max + log2_approx(sum)) * kLn2; }
};
