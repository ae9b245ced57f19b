// The registers of a block, which setmaxnreg moves between its warpgroups.
#pragma once
#include "types.cuh"

// Of a block of `threads`, where `blocks` share an SM: ptxas launches a kernel that moves some with a multiple of 8 a
// thread, and the rest stays unused. A setmaxnreg that asks for more than all of these deadlocks.
constexpr __host__ __device__ int block_registers(int threads, int blocks) {
  return 65536 / (threads * blocks) / 8 * 8 * threads;
}
