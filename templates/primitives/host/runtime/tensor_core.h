// How tensor cores add, as published measurements found it (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA
// tensor cores", PeerJ Computer Science 7:e330, 2021): exact products of a block of the sum are aligned with the largest
// magnitude among them and the accumulator, cut off one bit below the accumulator's last, and added; the sum is cut off
// as well. An A100's blocks are 8 long, 4 of tf32; later devices add more at once, and keep more bits.
#pragma once
#include <immintrin.h>

namespace emulator {

// Conversions and sums of this thread round towards zero while it lives.
class TowardsZero {
 public:
  TowardsZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | _MM_ROUND_TOWARD_ZERO); }
  ~TowardsZero() { _mm_setcsr(before_); }
  TowardsZero(TowardsZero const&) = delete;

 private:
  unsigned before_;
};

// c[0..4) += the sum over k of a[k a_pitch] b[k b_pitch + 0..4), while sums round towards zero.
template <int N>
inline void add_block(float* c, double const* a, int a_pitch, double const* b, int b_pitch) {
  __m256d const sign = _mm256_set1_pd(-0.0), before = _mm256_cvtps_pd(_mm_load_ps(c));
  __m256d term[N], largest = _mm256_max_pd(_mm256_andnot_pd(sign, before), _mm256_set1_pd(0x1p-126));
  for (int k = 0; k < N; k++) {
    term[k] = _mm256_mul_pd(_mm256_broadcast_sd(a + k * a_pitch), _mm256_load_pd(b + k * b_pitch));
    largest = _mm256_max_pd(largest, _mm256_andnot_pd(sign, term[k]));
  }
  // 2^24 over the power of two in `largest`, and its inverse
  __m256i const exponent = _mm256_and_si256(_mm256_castpd_si256(largest), _mm256_set1_epi64x(0x7ffll << 52));
  __m256i const scale = _mm256_sub_epi64(_mm256_set1_epi64x((2046ll + 24) << 52), exponent);
  __m256d const units = _mm256_castsi256_pd(scale);
  __m256d const unit = _mm256_castsi256_pd(_mm256_sub_epi64(_mm256_set1_epi64x(2046ll << 52), scale));
  constexpr int kCutOff = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
  __m256d sum = _mm256_round_pd(_mm256_mul_pd(before, units), kCutOff);
  for (int k = 0; k < N; k++) sum = _mm256_add_pd(sum, _mm256_round_pd(_mm256_mul_pd(term[k], units), kCutOff));
  _mm_store_ps(c, _mm256_cvtpd_ps(_mm256_mul_pd(sum, unit)));
}

// c[0..8) likewise.
template <int N>
inline void add_products(float* c, double const* a, int a_pitch, double const* b, int b_pitch) {
  add_block<N>(c, a, a_pitch, b, b_pitch);
  add_block<N>(c + 4, a, a_pitch, b + 4, b_pitch);
}

}  // namespace emulator
