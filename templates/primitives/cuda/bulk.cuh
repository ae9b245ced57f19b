// cp.async.bulk (sm_90): contiguous bulk copies; addresses and sizes are multiples of 16 bytes.
#pragma once
#include "types.cuh"

// Global to shared; completion is counted in bytes on `barrier`.
__device__ __forceinline__ void cp_async_bulk(uint32_t dst, void const* src, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
               "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(barrier)
               : "memory");
}
// Global to the shared memory of every block of the cluster whose rank's bit is set in `blocks`: to `dst` and `barrier`
// of each.
__device__ __forceinline__ void cp_async_bulk_multicast(uint32_t dst, void const* src, int bytes, uint32_t barrier,
                                                        int blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
      "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(barrier), "h"(uint16_t(blocks))
      : "memory");
}
// Copies from this block's shared memory to that of another block of the cluster, where completion is counted in bytes
// on a barrier: `mapped` and `mapped_barrier` are addresses from map_shared_rank for the same block. The block's own
// writes must be fenced first with fence_proxy_async. `src` may be overwritten, and this block may exit, only once the
// copy is known to have completed.
__device__ __forceinline__ void cp_async_bulk_to_block(uint32_t mapped, uint32_t src, int bytes,
                                                       uint32_t mapped_barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   mapped),
               "r"(src), "r"(bytes), "r"(mapped_barrier)
               : "memory");
}
// Shared to global, in this thread's open group. The block's own writes must be fenced first with fence_proxy_async.
__device__ __forceinline__ void cp_async_bulk_store(void* dst, uint32_t src, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(dst)),
               "r"(src), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most the newest N groups of stores are pending.
template <int N>
__device__ __forceinline__ void cp_async_bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
// Waits until at most the newest N groups of stores still read their shared memory: that of the others may be
// overwritten.
template <int N>
__device__ __forceinline__ void cp_async_bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
