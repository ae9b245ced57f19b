// 8-bit storage types, and their exact conversion to 16-bit types.
#pragma once
#include "types.cuh"

struct fp8_e4m3 {  // 4 exponent bits with bias 7, 3 mantissa bits; subnormals; 0x7f and 0xff are NaN; no infinities
  uint8_t bits;
};

__device__ __forceinline__ float to_float(fp8_e4m3 x) {
  uint32_t const size = x.bits & 0x7f;
  float const value = __uint_as_float(x.bits >> 7 << 31 | size << 20) * 0x1p120f;  // both exponents are biased
  return size == 0x7f ? __uint_as_float(0x7fffffff) : value;
}

// Two bytes of a register as fp16, using integer operations and multiplications: for arches without the instruction.
template <int kLow, int kHigh>
struct TwoBytes {
  // Each byte, preceded by a copy of its sign.
  static constexpr int kSpread = kLow | (8 | kLow) << 4 | kHigh << 8 | (8 | kHigh) << 12;

  static __device__ __forceinline__ uint32_t widened(uint32_t four) {
    uint32_t spread, pair;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(spread) : "r"(four), "n"(kSpread));
    // The sign, and the 7 bits at the second-highest position of exponent and mantissa: the value / 2^8, with NaN as
    // 1.875. Only that, multiplied by 1.125 · 2^15, is infinite, and 0 times infinity is NaN.
    asm("{.reg .b32 large, exact; mul.rn.f16x2 large, %1, %2; mul.rn.f16x2 exact, %1, %3;\n"
        "fma.rn.f16x2 %0, large, %4, exact;}"
        : "=r"(pair)
        : "r"(spread << 7 & 0xbf80bf80), "r"(0x78807880), "r"(0x5c005c00), "r"(0));
    return pair;
  }
};

template <class T>
constexpr bool kIsBf16 = false;
template <>
constexpr bool kIsBf16<bf16> = true;

// The four values of a register as pairs of T: bytes 0 and kApart, and the remaining two in order. kApart: 1 or 2.
template <class T, int kApart>
__device__ __forceinline__ void widen_bytes(uint32_t (&pairs)[2], uint32_t four) {
  static_assert(kApart == 1 || kApart == 2, "neighbours, or those that have one between them");
  if constexpr (kIsBf16<T>) {
    widen_bytes<fp16, kApart>(pairs, four);
#pragma unroll
    for (int i = 0; i < 2; ++i) pairs[i] = pack<bf16>(unpack_lo<fp16>(pairs[i]), unpack_hi<fp16>(pairs[i]));
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890  // nvcc parses this for the host as well, where no arch is defined
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2;\n"  // sm_89
        "cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(kApart == 1 ? four : __byte_perm(four, 0, 0x3120)));
#else
    pairs[0] = TwoBytes<0, kApart>::widened(four);
    pairs[1] = TwoBytes<3 - kApart, 3>::widened(four);
#endif
  }
}
