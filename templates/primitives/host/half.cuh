// fp16 conversions of the CPU, without its 2 MB of headers; conversion to fp16 rounds to nearest even.
#pragma once
#include <cstdint>

namespace emulator {

#if defined(__x86_64__)
using Halves [[gnu::vector_size(16)]] = short;
using Floats [[gnu::vector_size(16)]] = float;
inline float from_half(uint16_t bits) { return __builtin_ia32_vcvtph2ps(Halves{short(bits)})[0]; }
inline uint16_t to_half(float x) { return uint16_t(__builtin_ia32_vcvtps2ph(Floats{x}, 0)[0]); }
#else
inline float from_half(uint16_t bits) { return __builtin_bit_cast(__fp16, bits); }
inline uint16_t to_half(float x) { return __builtin_bit_cast(uint16_t, static_cast<__fp16>(x)); }
#endif

}  // namespace emulator
