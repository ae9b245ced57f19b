// What the compiler must not know; a CPU's may.
#pragma once
#include "types.cuh"

__forceinline__ void forget(uint32_t&) {}
template <class T>
__forceinline__ void forget(T const*&) {}
__forceinline__ void forget_memory() {}
