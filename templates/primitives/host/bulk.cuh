// cp.async.bulk: contiguous bulk copies; addresses and sizes are multiples of 16 bytes.
#pragma once
#include "types.cuh"

// Global to shared; completion is counted in bytes on `barrier`.
__forceinline__ void cp_async_bulk(uint32_t dst, void const* src, int bytes, uint32_t barrier,
                                   emulator::Here site = {}) {
  emulator::bulk_load(dst, src, bytes, barrier, emulator::kThisBlock, site);
}
// Global to the shared memory of every block of the cluster whose rank's bit is set in `blocks`: to `dst` and `barrier`
// of each.
__forceinline__ void cp_async_bulk_multicast(uint32_t dst, void const* src, int bytes, uint32_t barrier, int blocks,
                                             emulator::Here site = {}) {
  emulator::bulk_load(dst, src, bytes, barrier, blocks, site);
}
// Copies from this block's shared memory to that of another block of the cluster, where completion is counted in bytes
// on a barrier: `mapped` and `mapped_barrier` are addresses from map_shared_rank for the same block. The block's own
// writes must be fenced first with fence_proxy_async. `src` may be overwritten, and this block may exit, only once the
// copy is known to have completed.
__forceinline__ void cp_async_bulk_to_block(uint32_t mapped, uint32_t src, int bytes, uint32_t mapped_barrier,
                                            emulator::Here site = {}) {
  emulator::bulk_to_block(mapped, src, bytes, mapped_barrier, site);
}
// Shared to global, in this thread's open group. The block's own writes must be fenced first with fence_proxy_async.
__forceinline__ void cp_async_bulk_store(void* dst, uint32_t src, int bytes, emulator::Here site = {}) {
  emulator::bulk_store(dst, src, bytes, site);
}

__forceinline__ void cp_async_bulk_commit() { emulator::bulk_commit(); }

// Waits until at most the newest N groups of stores are pending.
template <int N>
__forceinline__ void cp_async_bulk_wait() {
  emulator::bulk_wait(N);
}
// Waits until at most the newest N groups of stores still read their shared memory: that of the others may be
// overwritten.
template <int N>
__forceinline__ void cp_async_bulk_wait_read() {
  emulator::bulk_wait_read(N);
}
