// What the compiler must not know: it then computes again, later, what it would keep in registers until then.
#pragma once
#include "types.cuh"

// Hides that a register holds what it held before.
__device__ __forceinline__ void forget(uint32_t& r) { asm volatile("" : "+r"(r)); }

// Hides that memory holds what it held before.
__device__ __forceinline__ void forget_memory() { asm volatile("" ::: "memory"); }
