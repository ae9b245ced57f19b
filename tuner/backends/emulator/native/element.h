// 16-bit elements of tensor core operands.
#pragma once
#include "runtime_api.h"
#include "half.cuh"
#include "processor.h"

namespace emulator {

inline float widen(uint16_t bits, Element element) {
  return element == Element::bf16 ? __builtin_bit_cast(float, uint32_t(bits) << 16) : from_half(bits);
}

inline Ints widen_eight(EightHalves bits, Element element) {
#if defined(__x86_64__)
  if (element == Element::fp16) return __builtin_bit_cast(Ints, __builtin_ia32_vcvtph2ps256(bits));
  return __builtin_bit_cast(Ints, __builtin_ia32_pmovzxwd256(bits)) << 16;
#else
  Ints widened;
  for (int i = 0; i < 8; i++) widened[i] = __builtin_bit_cast(int32_t, widen(uint16_t(bits[i]), element));
  return widened;
#endif
}

}  // namespace emulator
