// 16-bit elements of tensor core operands.
#pragma once
#include "runtime_api.h"
#include "half.cuh"

namespace emulator {

inline float widen(uint16_t bits, Element element) {
  return element == Element::bf16 ? __builtin_bit_cast(float, uint32_t(bits) << 16) : from_half(bits);
}

}  // namespace emulator
