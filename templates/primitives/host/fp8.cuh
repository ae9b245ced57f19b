// 8-bit storage types, and their exact conversion to 16-bit types.
#pragma once
#include "types.cuh"

struct fp8_e4m3 {  // 4 exponent bits with bias 7, 3 mantissa bits; subnormals; 0x7f and 0xff are NaN; no infinities
  uint8_t bits;
};

inline float to_float(fp8_e4m3 x) {
  uint32_t const size = x.bits & 0x7f;
  float const value = __uint_as_float(uint32_t(x.bits) >> 7 << 31 | size << 20) * 0x1p120f;  // both exponents are biased
  return size == 0x7f ? __uint_as_float(0x7fffffff) : value;
}

// The four values of a register as pairs of T: bytes 0 and kApart, and the remaining two in order. kApart: 1 or 2.
template <class T, int kApart>
inline void widen_bytes(uint32_t (&pairs)[2], uint32_t four) {
  static_assert(kApart == 1 || kApart == 2, "neighbours, or those that have one between them");
  auto const value = [=](int byte) { return to_float(fp8_e4m3{uint8_t(four >> 8 * byte)}); };
  pairs[0] = pack<T>(value(0), value(kApart));
  pairs[1] = pack<T>(value(3 - kApart), value(3));
}
