// The special function unit, as inexact as the PTX ISA lets it be: a result is off by up to the documented error, by how
// much its operand's bits alone decide. So a kernel that is right here does not owe it to results better than a device's.
#pragma once
#include "types.cuh"

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

__forceinline__ float flush_subnormal(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }

// A result that is up to `limit` off, the same for the same operand; exact for an operand of 0, as ex2 is.
__forceinline__ float off_by_up_to(float limit, float result, float operand) {
  auto const mixed = int32_t((__float_as_uint(operand) ^ __float_as_uint(operand) >> 15) * 2654435769u);
  return __builtin_isfinite(result) ? fmaf(limit, float(mixed) * 0x1p-31f, result) : result;
}

__forceinline__ float exp2_approx(float x) {
  float const y = exp2f(x);
  return flush_subnormal(off_by_up_to(0x1p-22f * y, y, x));
}
__forceinline__ float log2_approx(float x) {
  float const in = flush_subnormal(x), y = log2f(in);
  return off_by_up_to(0x1p-22f * (in > 0.5f && in < 2.0f ? 1.0f : fabsf(y)), y, x);
}
__forceinline__ float rcp_approx(float x) {
  float const y = 1.0f / flush_subnormal(x);
  return flush_subnormal(off_by_up_to(0x1p-24f * y, y, x));  // with its own rounding, 1 ulp
}
__forceinline__ float tanh_approx(float x) {
  float const y = tanhf(x);
  return off_by_up_to(0x1p-11f * y, y, x);
}
