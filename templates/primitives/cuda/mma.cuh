// mma.sync (sm_80): d += a b for one warp, fp32 accumulators; fragment.cuh defines the fragments. Declared volatile,
// since the compiler may otherwise move the asm into a branch that uses its result, which some lanes may not take.
#pragma once
#include "types.cuh"

template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], uint32_t const (&a)[4], uint32_t const (&b)[2]);
template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float (&d)[4], uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<fp16>(float (&d)[4], uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class T>
__device__ __forceinline__ void mma_m16n8k8(float (&d)[4], uint32_t const (&a)[2], uint32_t const (&b)[1]);
template <>
__device__ __forceinline__ void mma_m16n8k8<bf16>(float (&d)[4], uint32_t const (&a)[2], uint32_t const (&b)[1]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
template <>
__device__ __forceinline__ void mma_m16n8k8<fp16>(float (&d)[4], uint32_t const (&a)[2], uint32_t const (&b)[1]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// Operands are fp32 bits; the tensor core reads the upper 19, so use `round_tf32` for full accuracy.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The tf32 value nearest to x, with ties away from zero.
__device__ __forceinline__ uint32_t round_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
