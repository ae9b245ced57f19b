// What the compiler must not know: where a value comes from. What follows from the value is then computed again, later,
// instead of being kept in registers until then; and the value itself is kept, instead of being computed again.
#pragma once
#include "types.cuh"

// Hides that a register holds what it held before.
__device__ __forceinline__ void forget(uint32_t& r) { asm volatile("" : "+r"(r)); }
// A pointer to global memory stays one: of any other an access would have to find out where it goes, by LD in place of LDG.
template <class T>
__device__ __forceinline__ void forget(T const*& p) {
  auto address = __cvta_generic_to_global(p);
  asm volatile("" : "+l"(address));
  p = static_cast<T const*>(__cvta_global_to_generic(address));
}

// Hides that memory holds what it held before.
__device__ __forceinline__ void forget_memory() { asm volatile("" ::: "memory"); }
