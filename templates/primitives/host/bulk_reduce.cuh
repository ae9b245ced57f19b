// cp.reduce.async.bulk: the copy engine adds contiguous values to global memory.
#pragma once
#include "bulk.cuh"

// Adds fp32 from shared to global memory, in this thread's open group; addresses and bytes are multiples of 16. What
// the block wrote must be fenced first: fence_proxy_async. cp_async_bulk_wait says that the sums are there.
__forceinline__ void cp_async_bulk_add(float* dst, uint32_t src, int bytes, emulator::Here site = {}) {
  emulator::bulk_add(dst, src, bytes, site);
}

// Between an acquire and the stores and sums of the copy engine that are to come behind it.
__forceinline__ void fence_proxy_async_global() { emulator::fence_proxy_async_global(); }
