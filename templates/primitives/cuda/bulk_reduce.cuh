// cp.reduce.async.bulk (sm_90): bulk reductions that add contiguous values to global memory.
#pragma once
#include "bulk.cuh"

// Adds fp32 from shared to global memory, in this thread's open group; addresses and sizes are multiples of 16 bytes.
// The block's own writes must be fenced first with fence_proxy_async. The sums are complete after cp_async_bulk_wait.
__device__ __forceinline__ void cp_async_bulk_add(float* dst, uint32_t src, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(dst)),
               "r"(src), "r"(bytes)
               : "memory");
}

// Call between an acquire and subsequent bulk stores and reductions.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
