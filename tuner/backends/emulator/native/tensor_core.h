// Tensor-core summation; tuner/backends/tensor_cores.py describes the model and its parameters.
#pragma once
#include <algorithm>

#include "processor.h"
#include "state.h"

namespace emulator {

// Sets the rounding mode of this thread to toward-zero while the object exists.
class TowardsZero {
 public:
  TowardsZero() : before_(float_control()) { set_float_control(before_ | kTowardsZero); }
  ~TowardsZero() { set_float_control(before_); }
  TowardsZero(TowardsZero const&) = delete;

 private:
  uint32_t before_;
};

constexpr int32_t kExponentOfZero = -4096;  // below the exponent of any product
constexpr int32_t kLeastExponent = -126;  // smallest exponent of fp32, bf16 and tf32
constexpr int32_t kLeastExponentFp16 = -14;

inline int32_t least_exponent(Element element) {
  return element == Element::fp16 ? kLeastExponentFp16 : kLeastExponent;
}

inline Ints larger(Ints x, Ints y) { return x > y ? x : y; }

// The exponents of fp32 bits as hardware reads them: subnormals have the smallest exponent of their original type.
inline Ints exponents(Ints bits, int32_t least) {
  Ints const exponent = larger((bits >> 23 & 255) - 127, Ints{} + least);
  return bits << 1 == 0 ? Ints{} + kExponentOfZero : exponent;
}

// Elements of an operand with their exponents.
template <int COUNT>
struct alignas(32) Tile {
  double value[COUNT];
  int32_t exponent[COUNT];
};

// Loads the first `count` elements of a tile (a multiple of 8); `from(i)` returns the fp32 bits starting at element i.
template <int COUNT, class From>
inline void fill(Tile<COUNT>& tile, int count, int32_t least, From from) {
  for (int i = 0; i < count; i += 8) {
    Ints const bits = from(i);
    *reinterpret_cast<Ints*>(tile.exponent + i) = exponents(bits, least);
#pragma GCC unroll 4
    for (int j = 0; j < 8; j += kVector)
      *reinterpret_cast<Doubles*>(tile.value + i + j) = widened(Singles(part(bits, j)));
  }
}
template <int COUNT>
inline void fill(Tile<COUNT>& tile, float const* from, int count, int32_t least) {
  fill(tile, count, least, [=](int i) { return *reinterpret_cast<Ints const*>(from + i); });
}

// Elements of a tile with distance `pitch`, or rows of 8 with distance `pitch`.
struct Strided {
  double const* value;
  int32_t const* exponent;
  int pitch;
};

inline Strided operator+(Strided s, int k) { return {s.value + k * s.pitch, s.exponent + k * s.pitch, s.pitch}; }

// One step: `c` += the sum over k < N of a[k] b[k][0..8), with sums rounded toward zero.
template <int N>
inline Ints add_step(Ints c, Strided a, Strided b, SumRule const& rule) {
  Ints largest = larger(exponents(c, kLeastExponent), Ints{} + rule.zero_exponent);
#pragma GCC unroll 16
  for (int k = 0; k < N; k++)
    largest = larger(largest, a.exponent[k * a.pitch] + *reinterpret_cast<Ints const*>(b.exponent + k * b.pitch));
  Ints const shift = rule.fraction_bits + 1023 - largest;
  Shifts sums[8 / kVector];
#pragma GCC unroll 4
  for (int j = 0; j < 8; j += kVector) {
    Longs const scale = widened(part(shift, j)) << 52;
    Doubles const units = Doubles(scale), unit = Doubles((2046ll << 52) - scale);
    // Exact in any order; two partial sums are faster.
    Doubles sum[2] = {cut_off(widened(Singles(part(c, j))) * units), {}};
#pragma GCC unroll 16
    for (int k = 0; k < N; k++)
      sum[k % 2] += cut_off(a.value[k * a.pitch] * *reinterpret_cast<Doubles const*>(b.value + k * b.pitch + j) * units);
    sums[j / kVector] = Shifts(__builtin_convertvector((sum[0] + sum[1]) * unit, Singles));
  }
  return joined(sums);
}

// The largest finite number and beyond: unlike tensor cores, the conversion toward zero saturates and preserves NaN
// bits.
inline Ints is_special(Ints c) { return (c & 0x7fffffff) >= 0x7f7fffff; }

// The same for one column that may need it.
inline float add_step(float c, Strided a, Strided b, int count, SumRule const& rule) {
  int32_t largest = std::max(exponents(Ints{} + __builtin_bit_cast(int32_t, c), kLeastExponent)[0], rule.zero_exponent);
  for (int k = 0; k < count; k++) largest = std::max(largest, a.exponent[k * a.pitch] + b.exponent[k * b.pitch]);
  double const units = __builtin_ldexp(1, rule.fraction_bits - largest);
  double sum = __builtin_trunc(c * units);
  for (int k = 0; k < count; k++) sum += __builtin_trunc(a.value[k * a.pitch] * b.value[k * b.pitch] * units);
  sum /= units;
  if (sum != sum) return __builtin_bit_cast(float, 0x7fffffff);
  return __builtin_fabs(sum) < 0x1p128 ? float(sum) : __builtin_copysignf(__builtin_inff(), float(sum));
}

[[gnu::cold, gnu::noinline]] inline void add_special(float* c, Strided a, Strided b, int depth, int step,
                                                     SumRule const& rule) {
  for (int j = 0; j < 8; j++, b.value++, b.exponent++)
    for (int k = 0; k < depth; k += step) c[j] = add_step(c[j], a + k, b + k, std::min(depth, step), rule);
}

// c[0..8) += the sum over k < DEPTH of a[k] b[k][0..8), in the steps of an instruction with this element size in bytes.
template <int DEPTH, int BYTES>
inline void add_products(float* c, Strided a, Strided b, SumRule const& rule) {
  constexpr int kShort = std::min(DEPTH, 16 / BYTES), kLong = std::min(DEPTH, 32 / BYTES);
  static_assert(kLong == DEPTH && DEPTH % kShort == 0);
  auto& sums = *reinterpret_cast<Singles(*)[8 / kVector]>(c);
  Ints total = *reinterpret_cast<Ints const*>(c), special{};
  if (rule.step_bytes == 32) {
    total = add_step<kLong>(total, a, b, rule);
    special = is_special(total);
  } else {
#pragma GCC unroll 2
    for (int k = 0; k < DEPTH; k += kShort) {
      total = add_step<kShort>(total, a + k, b + k, rule);
      special |= is_special(total);
    }
  }
  if (any(special)) [[unlikely]]
    return add_special(c, a, b, DEPTH, rule.step_bytes / BYTES, rule);
  *reinterpret_cast<Ints*>(c) = total;
  for (Singles& sum : sums) sum += 0.0f;  // makes zero positive
}

}  // namespace emulator
