// cp.reduce.async.bulk: bulk reductions that add contiguous values to global memory.
#pragma once
#include "bulk.cuh"

// Adds fp32 from shared to global memory, in this thread's open group; addresses and sizes are multiples of 16 bytes.
// The block's own writes must be fenced first with fence_proxy_async. The sums are complete after cp_async_bulk_wait.
__forceinline__ void cp_async_bulk_add(float* dst, uint32_t src, int bytes, emulator::Here site = {}) {
  emulator::bulk_add(dst, src, bytes, site);
}

// Call between an acquire and subsequent bulk stores and reductions.
__forceinline__ void fence_proxy_async_global() { emulator::fence_proxy_async_global(); }
