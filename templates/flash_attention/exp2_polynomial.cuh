// Exponentials without the special function unit.
#pragma once

// 2^x on the FMA pipe, x <= 0: x splits into a whole number and f in [-1/2, 1/2]; the relative error is below 2.9e-06.
// The power is exactly 1 at f = 0, so that the exponent -127 leaves 0 of it: what masked scores must give.
__device__ __forceinline__ float exp2_polynomial(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves the whole number in the low bits
  x = fmaxf(x, -127.0f);
  float const whole = x + kRound, f = x - (whole - kRound);
  float const power = fmaf(fmaf(fmaf(fmaf(0.0095829f, f, 0.0559064f), f, 0.2402410f), f, 0.6931242f), f, 1.0f);
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(whole) << 23));
}
