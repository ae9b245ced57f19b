// How tensor cores add, as published measurements found it (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA
// tensor cores", PeerJ Computer Science 7:e330, 2021): exact products of a block of the sum are aligned with the largest
// magnitude among them and the accumulator, cut off one bit below the accumulator's last, and added; the sum is cut off
// as well. An A100's blocks are 8 long, 4 of tf32; later devices add more at once, and keep more bits.
#pragma once
#include "processor.h"

namespace emulator {

// Conversions and sums of this thread round towards zero while it lives.
class TowardsZero {
 public:
  TowardsZero() : before_(float_control()) { set_float_control(before_ | kTowardsZero); }
  ~TowardsZero() { set_float_control(before_); }
  TowardsZero(TowardsZero const&) = delete;

 private:
  uint32_t before_;
};

inline Doubles magnitude(Doubles x) { return Doubles(Longs(x) & INT64_MAX); }

// One vector of c += the sum over k of a[k a_pitch] b[k b_pitch + 0..), while sums round towards zero.
template <int N>
inline void add_block(float* c, double const* a, int a_pitch, double const* b, int b_pitch) {
  Doubles const before = widened(*reinterpret_cast<Singles const*>(c));
  Doubles term[N], largest = larger(magnitude(before), Doubles{} + 0x1p-126);
  for (int k = 0; k < N; k++) {
    term[k] = a[k * a_pitch] * *reinterpret_cast<Doubles const*>(b + k * b_pitch);
    largest = larger(largest, magnitude(term[k]));
  }
  // 2^24 over the power of two in `largest`, and its inverse
  Longs const scale = ((2046ll + 24) << 52) - (Longs(largest) & 0x7ffll << 52);
  Doubles const units = Doubles(scale), unit = Doubles((2046ll << 52) - scale);
  Doubles sum = cut_off(before * units);
  for (int k = 0; k < N; k++) sum += cut_off(term[k] * units);
  *reinterpret_cast<Singles*>(c) = __builtin_convertvector(sum * unit, Singles);
}

// c[0..8) likewise.
template <int N>
inline void add_products(float* c, double const* a, int a_pitch, double const* b, int b_pitch) {
#pragma GCC unroll 4
  for (int j = 0; j < 8; j += kVector) add_block<N>(c + j, a, a_pitch, b + j, b_pitch);
}

}  // namespace emulator
