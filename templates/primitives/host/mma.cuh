// mma.sync: d += a b for one warp, fp32 accumulators; fragment.cuh defines the fragments.
#pragma once
#include "types.cuh"

template <class T>
constexpr emulator::Element kElement = emulator::Element::bf16;
template <>
inline constexpr emulator::Element kElement<fp16> = emulator::Element::fp16;

template <class T>
__forceinline__ void mma_m16n8k16(float (&d)[4], uint32_t const (&a)[4], uint32_t const (&b)[2],
                                  emulator::Here site = {}) {
  emulator::mma_m16n8k16(d, a, b, kElement<T>, site);
}
template <class T>
__forceinline__ void mma_m16n8k8(float (&d)[4], uint32_t const (&a)[2], uint32_t const (&b)[1],
                                 emulator::Here site = {}) {
  emulator::mma_m16n8k8(d, a, b, kElement<T>, site);
}

// Operands are fp32 bits; the tensor core reads the upper 19, so use `round_tf32` for full accuracy.
__forceinline__ void mma_m16n8k8_tf32(float (&d)[4], uint32_t const (&a)[4], uint32_t const (&b)[2],
                                      emulator::Here site = {}) {
  emulator::mma_m16n8k8(d, a, b, emulator::Element::tf32, site);
}

// The tf32 value nearest to x, with ties away from zero.
__forceinline__ uint32_t round_tf32(float x) {
  uint32_t const bits = __float_as_uint(x);
  if (x != x) return 0x7fffffff;
  return fabsf(x) < kInfinity ? (bits + 0x1000) & 0xffffe000 : bits;
}
