// Hides from the compiler where a value comes from. What depends on the value is then computed again where it is used,
// instead of being kept in registers; and the value itself is kept, instead of being computed again.
#pragma once
#include "types.cuh"

// Hides that a register holds what it held before.
__device__ __forceinline__ void forget(uint32_t& r) { asm volatile("" : "+r"(r)); }
// A pointer to global memory stays one: an access through a generic pointer would be LD instead of LDG.
template <class T>
__device__ __forceinline__ void forget(T const*& p) {
  auto address = __cvta_generic_to_global(p);
  asm volatile("" : "+l"(address));
  p = static_cast<T const*>(__cvta_global_to_generic(address));
}

// Hides that memory holds what it held before.
__device__ __forceinline__ void forget_memory() { asm volatile("" ::: "memory"); }
