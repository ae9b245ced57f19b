// Storage types and their conversions, and the parts of the CUDA language that need no include.
#pragma once
#include "builtin.cuh"
#include "half.cuh"

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

constexpr float kInfinity = __builtin_huge_valf();

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
inline float to_float(fp16 x) { return emulator::from_half(x.bits); }

// Rounds to nearest even.
template <class T>
inline T from_float(float x);
template <>
inline float from_float<float>(float x) { return x; }
template <>
inline bf16 from_float<bf16>(float x) {
  uint32_t const bits = __float_as_uint(x);
  if (x != x) return {0x7fff};  // the only NaN that cvt returns
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <>
inline fp16 from_float<fp16>(float x) {
  if (x != x) return {0x7fff};
  return {emulator::to_half(x)};
}

// Two values in one register; `lo` is in the low half, as in fragments and memory.
template <class T>
inline uint32_t pack(float lo, float hi) { return from_float<T>(lo).bits | uint32_t(from_float<T>(hi).bits) << 16; }

template <class T>
inline float unpack_lo(uint32_t pair) { return to_float(T{uint16_t(pair)}); }
template <class T>
inline float unpack_hi(uint32_t pair) { return to_float(T{uint16_t(pair >> 16)}); }
