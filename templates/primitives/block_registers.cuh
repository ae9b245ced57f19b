// The registers of a block, which setmaxnreg redistributes between its warpgroups.
#pragma once
#include "types.cuh"

// Total registers of a block of `threads` threads with `blocks` blocks per SM. ptxas launches a kernel that uses
// setmaxnreg with a multiple of 8 registers per thread, and the remainder is unused. A setmaxnreg that requests more
// than this total deadlocks.
constexpr __host__ __device__ int block_registers(int threads, int blocks) {
  return 65536 / (threads * blocks) / 8 * 8 * threads;
}
