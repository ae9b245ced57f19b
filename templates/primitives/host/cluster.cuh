// Clusters: blocks that run side by side and reach each other's shared memory. Their number, along x, stands in
// the kernel's __cluster_dims__(n, 1, 1) and in its plan's Launch.cluster.
#pragma once
#include "types.cuh"

// This block's number in its cluster, and how many blocks that has.
__forceinline__ int cluster_rank() { return emulator::cluster_rank(); }
__forceinline__ int cluster_size() { return emulator::cluster_size(); }

// The cluster's barrier, for whole warps: after the wait, writes that any thread of the cluster made before its arrival
// are visible.
__forceinline__ void cluster_arrive(emulator::Here site = {}) { emulator::cluster_arrive(site); }
__forceinline__ void cluster_wait(emulator::Here site = {}) { emulator::cluster_wait(site); }
__forceinline__ void cluster_sync(emulator::Here site = {}) {
  emulator::cluster_arrive(site);
  emulator::cluster_wait(site);
}

// The same address in the shared memory of the block of that rank, for mbarrier_arrive_cluster and store_async.
__forceinline__ uint32_t map_shared_rank(uint32_t address, int rank, emulator::Here site = {}) {
  return emulator::map_shared_rank(address, rank, site);
}

// Writes 4 or 16 bytes, aligned to as many, into the shared memory of a block, whose mbarrier counts them as it does a
// copy's. Both are addresses of map_shared_rank, of one block.
__forceinline__ void store_async(uint32_t mapped, uint32_t value, uint32_t mapped_barrier, emulator::Here site = {}) {
  emulator::store_async(mapped, &value, sizeof value, mapped_barrier, site);
}
__forceinline__ void store_async(uint32_t mapped, uint4 value, uint32_t mapped_barrier, emulator::Here site = {}) {
  emulator::store_async(mapped, &value, sizeof value, mapped_barrier, site);
}
