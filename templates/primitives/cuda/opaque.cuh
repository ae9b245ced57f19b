// Makes the origin of a value opaque to the compiler. Expressions that depend on the value are then recomputed at each
// use instead of being kept in registers, and the value itself is kept instead of being recomputed.
#pragma once
#include "types.cuh"

// Makes the value of a register opaque.
__device__ __forceinline__ void forget(uint32_t& r) { asm volatile("" : "+r"(r)); }
// The pointer remains one to global memory: an access through a generic pointer would be LD instead of LDG.
template <class T>
__device__ __forceinline__ void forget(T const*& p) {
  auto address = __cvta_generic_to_global(p);
  asm volatile("" : "+l"(address));
  p = static_cast<T const*>(__cvta_global_to_generic(address));
}

// Makes the contents of memory opaque.
__device__ __forceinline__ void forget_memory() { asm volatile("" ::: "memory"); }
