// cp.async.bulk: contiguous copies by the copy engine; addresses and bytes are multiples of 16.
#pragma once
#include "types.cuh"

// Global to shared; the bytes count towards `barrier`.
__forceinline__ void cp_async_bulk(uint32_t dst, void const* src, int bytes, uint32_t barrier,
                                   emulator::Here site = {}) {
  emulator::bulk_load(dst, src, bytes, barrier, emulator::kThisBlock, site);
}
// The same into every block of the cluster whose rank's bit is set in `blocks`: to `dst` and `barrier` of each.
__forceinline__ void cp_async_bulk_multicast(uint32_t dst, void const* src, int bytes, uint32_t barrier, int blocks,
                                             emulator::Here site = {}) {
  emulator::bulk_load(dst, src, bytes, barrier, blocks, site);
}
// From this block's shared memory to that of a block of the cluster, where the bytes count towards a barrier: `mapped`
// and `mapped_barrier` are addresses of map_shared_rank, of one block. What the block wrote must be fenced first:
// fence_proxy_async. `src` may be written again, and this block may exit, once the copy is known to have landed.
__forceinline__ void cp_async_bulk_to_block(uint32_t mapped, uint32_t src, int bytes, uint32_t mapped_barrier,
                                            emulator::Here site = {}) {
  emulator::bulk_to_block(mapped, src, bytes, mapped_barrier, site);
}
// Shared to global, in this thread's open group. What the block wrote must be fenced first: fence_proxy_async.
__forceinline__ void cp_async_bulk_store(void* dst, uint32_t src, int bytes, emulator::Here site = {}) {
  emulator::bulk_store(dst, src, bytes, site);
}

__forceinline__ void cp_async_bulk_commit() { emulator::bulk_commit(); }

// Waits until at most the newest N groups of stores are unfinished.
template <int N>
__forceinline__ void cp_async_bulk_wait() {
  emulator::bulk_wait(N);
}
// The same, but only until their shared memory has been read and may be written again.
template <int N>
__forceinline__ void cp_async_bulk_wait_read() {
  emulator::bulk_wait_read(N);
}
