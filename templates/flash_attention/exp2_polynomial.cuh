// Exponentials without the special function unit.
#pragma once

// 2^f for f in [-1/2, 1/2], coefficients from the highest power down; the relative error is below 2.9e-06. The result
// is exactly 1 at f = 0, so that the exponent -127 turns it into 0, as masked scores require.
constexpr float kExp2Fourth = 0.0095829f, kExp2Third = 0.0559064f, kExp2Second = 0.2402410f, kExp2First = 0.6931242f;
constexpr float kExp2Least = -127.0f;
constexpr float kExp2Round = 12582912.0f;  // 1.5 · 2^23: adding it leaves the integer in the low bits

// 2^x on the FMA pipe, x <= 0: x is split into an integer and f.
__device__ __forceinline__ float exp2_polynomial(float x) {
  x = fmaxf(x, kExp2Least);
  float const whole = x + kExp2Round, f = x - (whole - kExp2Round);
  float const power = fmaf(fmaf(fmaf(fmaf(kExp2Fourth, f, kExp2Third), f, kExp2Second), f, kExp2First), f, 1.0f);
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(whole) << 23));
}
