// fp32 as operands of m16n8k8: one tf32 term per element, or two terms whose products have the accuracy of fp32.
#pragma once
#include "mma.cuh"
#include "register.cuh"

// Operand A of 16 kM rows, and B of kTiles 8-wide columns, over 8 elements of the contraction. With two terms, the
// first is the rounded element, the second the remainder, of which the tensor core drops at most 2^-21 of the element
// (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022).
template <int kTerms, int kM>
using OperandA = uint32_t[kTerms][kM][4];
template <int kTerms, int kTiles>
using OperandB = uint32_t[kTerms][kTiles][2];

// What is known about elements: nothing; that they are tf32; or that a NaN among them makes the sum of the row a NaN
// too.
enum class Known { kNothing, kRounded, kInSum };

// x + kHalf without its lowest 13 bits is the tf32 value nearest to x, with ties away from zero, unless x is NaN.
constexpr uint32_t kHalf = 0x1000;

// The only term of an element; the tensor core ignores the lowest 13 bits.
template <Known kKnown>
__device__ __forceinline__ uint32_t one_term(uint32_t bits) {
  if constexpr (kKnown == Known::kRounded) return bits;
  return kKnown == Known::kInSum ? bits + kHalf : round_tf32(__uint_as_float(bits));
}
// Both terms; a NaN is kept in the second.
__device__ __forceinline__ void two_terms(uint32_t& first, uint32_t& second, uint32_t bits) {
  first = (bits + kHalf) & 0xffffe000;
  second = __float_as_uint(__uint_as_float(bits) - __uint_as_float(first));
}

template <Known kKnown, int kTerms, int kCount, int kRegisters>
__device__ __forceinline__ void split(uint32_t (&terms)[kTerms][kCount][kRegisters], int at,
                                      uint32_t const (&bits)[kRegisters]) {
#pragma unroll
  for (int r = 0; r < kRegisters; ++r) {
    if constexpr (kTerms == 1)
      terms[0][at][r] = one_term<kKnown>(bits[r]);
    else
      two_terms(terms[0][at][r], terms[1][at][r], bits[r]);
  }
}

// r_sum += A B with one term each.
template <int kM, int kTiles>
__device__ __forceinline__ void multiply_terms(float (&r_sum)[kM][kTiles][4], uint32_t const (&r_a)[kM][4],
                                               uint32_t const (&r_b)[kTiles][2]) {
#pragma unroll
  for (int i = 0; i < kM * kTiles; ++i) mma_m16n8k8_tf32(r_sum[i % kM][i / kM], r_a[i % kM], r_b[i / kM]);
}

// r_d += r_sum, executed before the code that follows: the compiler would otherwise keep many sums, and add them later.
__device__ __forceinline__ void add_now(float (&r_d)[4], float const (&r_sum)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) r_d[i] += r_sum[i];
  fence_registers(r_d);
}

// Column tiles from `first` on: r_d += A B. With two terms, the smallest products are added first, and the product of
// both second terms is omitted; r_d is accumulated in fp32 arithmetic, since tensor cores truncate sums: over thousands
// of keys that is a bias.
template <int kTerms, int kTiles, int kM, int kN>
__device__ __forceinline__ void multiply(float (&r_d)[kM][kN][4], OperandA<kTerms, kM> const& r_a,
                                         OperandB<kTerms, kTiles> const& r_b, int first) {
  if constexpr (kTerms == 1) {
#pragma unroll
    for (int i = 0; i < kM * kTiles; ++i)
      mma_m16n8k8_tf32(r_d[i % kM][first + i / kM], r_a[0][i % kM], r_b[0][i / kM]);
  } else {
    float r_sum[kM][kTiles][4] = {};
    multiply_terms(r_sum, r_a[1], r_b[0]);
    multiply_terms(r_sum, r_a[0], r_b[1]);
    multiply_terms(r_sum, r_a[0], r_b[0]);
#pragma unroll
    for (int i = 0; i < kM * kTiles; ++i) add_now(r_d[i % kM][first + i / kM], r_sum[i % kM][i / kM]);
  }
}
