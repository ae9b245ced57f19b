// The block's shared memory, and barriers for a subset of its warps.
#pragma once
#include "types.cuh"

// Declares `name`: the launch's dynamic shared memory, unsigned char*, 1024-byte aligned for 128-byte swizzles.
#define DYNAMIC_SHARED(name) unsigned char* const name = emulator::dynamic_shared()

__forceinline__ uint32_t shared_address(void const* p, emulator::Here site = {}) {
  return emulator::shared_address(p, site);
}

// Barriers 1 to 15 (0 is __syncthreads); `threads` is the total number of threads that sync or arrive.
__forceinline__ void named_barrier_sync(int id, int threads, emulator::Here site = {}) {
  emulator::barrier_sync(id, threads, site);
}
__forceinline__ void named_barrier_arrive(int id, int threads, emulator::Here site = {}) {
  emulator::barrier_arrive(id, threads, site);
}
