// Atomic accesses to global memory with gpu scope and an ordering in the name: blocks use them to wait for each other.
// T is any type of 4 or 8 bytes; a plain atomicAdd and similar functions are relaxed.
#pragma once
#include "types.cuh"

template <class T>
__device__ __forceinline__ T load_acquire(T const* p) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "an atomic access has 4 or 8 bytes");
  T value;
  if constexpr (sizeof(T) == 4)
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];"
                 : "=r"(reinterpret_cast<uint32_t&>(value))
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
  else
    asm volatile("ld.acquire.gpu.global.b64 %0, [%1];"
                 : "=l"(reinterpret_cast<uint64_t&>(value))
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
  return value;
}

template <class T>
__device__ __forceinline__ T load_relaxed(T const* p) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "an atomic access has 4 or 8 bytes");
  T value;
  if constexpr (sizeof(T) == 4)
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];"
                 : "=r"(reinterpret_cast<uint32_t&>(value))
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
  else
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];"
                 : "=l"(reinterpret_cast<uint64_t&>(value))
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
  return value;
}

template <class T>
__device__ __forceinline__ void store_release(T* p, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "an atomic access has 4 or 8 bytes");
  if constexpr (sizeof(T) == 4)
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)),
                 "r"(reinterpret_cast<uint32_t const&>(value))
                 : "memory");
  else
    asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(p)),
                 "l"(reinterpret_cast<uint64_t const&>(value))
                 : "memory");
}

template <class T>
__device__ __forceinline__ void store_relaxed(T* p, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "an atomic access has 4 or 8 bytes");
  if constexpr (sizeof(T) == 4)
    asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)),
                 "r"(reinterpret_cast<uint32_t const&>(value))
                 : "memory");
  else
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(p)),
                 "l"(reinterpret_cast<uint64_t const&>(value))
                 : "memory");
}

// Each returns the previous value.
__device__ __forceinline__ uint32_t atomic_add_acq_rel(uint32_t* p, uint32_t value) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(__cvta_generic_to_global(p)), "r"(value)
               : "memory");
  return old;
}
__device__ __forceinline__ uint32_t atomic_add_release(uint32_t* p, uint32_t value) {
  uint32_t old;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(__cvta_generic_to_global(p)), "r"(value)
               : "memory");
  return old;
}
__device__ __forceinline__ uint32_t atomic_add_relaxed(uint32_t* p, uint32_t value) {
  uint32_t old;
  asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(__cvta_generic_to_global(p)), "r"(value)
               : "memory");
  return old;
}

// Call in every loop that waits for another thread's store, so that other threads run.
__device__ __forceinline__ void backoff() { __nanosleep(20); }
