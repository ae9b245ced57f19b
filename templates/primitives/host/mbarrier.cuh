// mbarrier: a barrier in shared memory (8 bytes, 8-byte aligned) that counts arrivals and bytes of copies.
// A phase ends when all have arrived and all expected bytes have landed; `parity` is the phase's number modulo 2.
#pragma once
#include "types.cuh"

// One thread initialises; then fence_mbarrier_init (fence.cuh) and a block barrier before anyone uses it: the cluster's
// (cluster.cuh) where other blocks do.
__forceinline__ void mbarrier_init(uint32_t barrier, int arrivals, emulator::Here site = {}) {
  emulator::mbarrier_init(barrier, arrivals, site);
}
__forceinline__ void mbarrier_inval(uint32_t barrier, emulator::Here site = {}) {
  emulator::mbarrier_inval(barrier, site);
}
__forceinline__ void mbarrier_arrive(uint32_t barrier, emulator::Here site = {}) {
  emulator::mbarrier_arrive(barrier, site);
}
// Arrives on a barrier of any block of the cluster, by its map_shared_rank. It releases what this thread has read, for
// a copy to overwrite. What it wrote is not published: to release that to a cluster costs a fence of the whole GPU.
__forceinline__ void mbarrier_arrive_cluster(uint32_t mapped, emulator::Here site = {}) {
  emulator::mbarrier_arrive_cluster(mapped, 0, site);
}
// The same, for bytes that this thread is about to copy there.
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

// Whether the phase of this parity has ended.
__forceinline__ bool mbarrier_test_wait(uint32_t barrier, int parity, emulator::Here site = {}) {
  return emulator::mbarrier_test_wait(barrier, parity, site);
}

// Waits until the phase of this parity has ended; parity 1 passes at once on a fresh barrier.
__forceinline__ void mbarrier_wait(uint32_t barrier, int parity, emulator::Here site = {}) {
  emulator::mbarrier_wait(barrier, parity, site);
}
