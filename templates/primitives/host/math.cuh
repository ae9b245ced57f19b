// The special function unit, with the maximum error that the PTX ISA permits: a result is off by up to the documented
// error, by an amount that depends only on the bits of the operand. A kernel that is accurate here therefore does not
// depend on results that are more accurate than a device's.
#pragma once
#include "types.cuh"

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

__forceinline__ float flush_subnormal(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }

// A function of the operand in [-1, 1); 0 for 0, where ex2 is exact.
__forceinline__ float error_of(float operand) {
  return float(int32_t((__float_as_uint(operand) ^ __float_as_uint(operand) >> 15) * 2654435769u)) * 0x1p-31f;
}
// Infinities and NaN have no error.
__forceinline__ float off_by_up_to(float limit, float result, float operand) {
  return __builtin_isfinite(result) ? fmaf(limit, error_of(operand), result) : result;
}

// The limits leave room for two roundings of a result.
__forceinline__ float exp2_approx(float x) {
  float const in = flush_subnormal(x), y = exp2f(in);
  return flush_subnormal(off_by_up_to(0x1p-23f * y, y, in));  // relative error 2^-22 with the roundings
}
__forceinline__ float log2_approx(float x) {
  float const in = flush_subnormal(x), y = log2f(in);
  return off_by_up_to(in > 0.5f && in < 2.0f ? 0x1.8p-23f : 0x1p-23f * y, y, in);  // 2^-22, absolute and relative
}
__forceinline__ float rcp_approx(float x) {
  float const in = flush_subnormal(x), y = 1.0f / in;
  if (!__builtin_isfinite(y)) return y;
  return flush_subnormal(float((1.0 + 0x1p-25 * error_of(in)) / in));  // 1 ulp
}
__forceinline__ float tanh_approx(float x) {
  float const y = float(tanh(double(x)));  // tanhf differs between C libraries
  return off_by_up_to(0x1.ffp-12f * y, y, x);  // 2^-11, relative
}
