// What the compiler must not know; a CPU's may.
#pragma once
#include "types.cuh"

__forceinline__ void forget(uint32_t&) {}
__forceinline__ void forget_memory() {}
