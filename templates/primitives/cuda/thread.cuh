// The block's shared memory, and barriers for a subset of its warps.
#pragma once
#include "types.cuh"

// Declares `name`: the launch's dynamic shared memory, unsigned char[], 1024-byte aligned for 128-byte swizzles.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

__device__ __forceinline__ uint32_t shared_address(void const* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Barriers 1 to 15 (0 is __syncthreads); `threads` is the total number of threads that sync or arrive.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
