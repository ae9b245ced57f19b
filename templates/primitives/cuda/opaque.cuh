// What the compiler must not know: where a value comes from. What follows from the value is then computed again, later,
// instead of being kept in registers until then; and the value itself is kept, instead of being computed again.
#pragma once
#include "types.cuh"

// Hides that a register holds what it held before.
__device__ __forceinline__ void forget(uint32_t& r) { asm volatile("" : "+r"(r)); }
template <class T>
__device__ __forceinline__ void forget(T const*& p) {
  asm volatile("" : "+l"(p));
}

// Hides that memory holds what it held before.
__device__ __forceinline__ void forget_memory() { asm volatile("" ::: "memory"); }
