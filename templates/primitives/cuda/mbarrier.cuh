// mbarrier (sm_90): a barrier in shared memory (8 bytes, 8-byte aligned) that counts arrivals and bytes of copies. A
// phase completes when all threads have arrived and all expected bytes have been written; `parity` is the phase number
// modulo 2.
#pragma once
#include "types.cuh"

// One thread initializes; then fence_mbarrier_init (fence.cuh) and a block barrier are required before first use, or a
// cluster barrier (cluster.cuh) if other blocks use it.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_inval(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(barrier) : "memory");
}
// Arrives on a barrier of any block of the cluster, given by its map_shared_rank address. It releases this thread's
// reads, so that a copy may overwrite the data. It does not publish this thread's writes: releasing those to a cluster
// costs a fence of gpu scope.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t mapped) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}
// Arrives there, and expects the bytes that this thread is about to copy there.
__device__ __forceinline__ void mbarrier_arrive_expect_tx_cluster(uint32_t mapped, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(mapped), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void mbarrier_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Whether the phase with this parity has completed.
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t barrier, int parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits until the phase with this parity has completed; on a new barrier, a wait for parity 1 returns immediately.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
