// mbarrier: a barrier in shared memory (8 bytes, 8-byte aligned) that counts arrivals and bytes of copies. A phase
// completes when all threads have arrived and all expected bytes have been written; `parity` is the phase number modulo
// 2.
#pragma once
#include "types.cuh"

// One thread initializes; then fence_mbarrier_init (fence.cuh) and a block barrier are required before first use, or a
// cluster barrier (cluster.cuh) if other blocks use it.
__forceinline__ void mbarrier_init(uint32_t barrier, int arrivals, emulator::Here site = {}) {
  emulator::mbarrier_init(barrier, arrivals, site);
}
__forceinline__ void mbarrier_inval(uint32_t barrier, emulator::Here site = {}) {
  emulator::mbarrier_inval(barrier, site);
}
__forceinline__ void mbarrier_arrive(uint32_t barrier, emulator::Here site = {}) {
  emulator::mbarrier_arrive(barrier, site);
}
// Arrives on a barrier of any block of the cluster, given by its map_shared_rank address. It releases this thread's
// reads, so that a copy may overwrite the data. It does not publish this thread's writes: releasing those to a cluster
// costs a fence of gpu scope.
__forceinline__ void mbarrier_arrive_cluster(uint32_t mapped, emulator::Here site = {}) {
  emulator::mbarrier_arrive_cluster(mapped, 0, site);
}
// Arrives there, and expects the bytes that this thread is about to copy there.
__forceinline__ void mbarrier_arrive_expect_tx_cluster(uint32_t mapped, int bytes, emulator::Here site = {}) {
  emulator::mbarrier_arrive_cluster(mapped, bytes, site);
}
__forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes, emulator::Here site = {}) {
  emulator::mbarrier_expect_tx(barrier, bytes, site);
  emulator::mbarrier_arrive(barrier, site);
}
__forceinline__ void mbarrier_expect_tx(uint32_t barrier, int bytes, emulator::Here site = {}) {
  emulator::mbarrier_expect_tx(barrier, bytes, site);
}

// Whether the phase with this parity has completed.
__forceinline__ bool mbarrier_test_wait(uint32_t barrier, int parity, emulator::Here site = {}) {
  return emulator::mbarrier_test_wait(barrier, parity, site);
}

// Waits until the phase with this parity has completed; on a new barrier, a wait for parity 1 returns immediately.
__forceinline__ void mbarrier_wait(uint32_t barrier, int parity, emulator::Here site = {}) {
  emulator::mbarrier_wait(barrier, parity, site);
}
