// Clusters: blocks that are co-scheduled and can access each other's shared memory. The cluster size, along x, is set
// in the kernel's __cluster_dims__(n, 1, 1) and in Launch.cluster of its plan.
#pragma once
#include "types.cuh"

// This block's rank in its cluster, and the cluster size.
__forceinline__ int cluster_rank() { return emulator::cluster_rank(); }
__forceinline__ int cluster_size() { return emulator::cluster_size(); }

// The cluster barrier, called by complete warps: after the wait, writes that any thread of the cluster made before its
// arrival are visible.
__forceinline__ void cluster_arrive(emulator::Here site = {}) { emulator::cluster_arrive(site); }
__forceinline__ void cluster_wait(emulator::Here site = {}) { emulator::cluster_wait(site); }
__forceinline__ void cluster_sync(emulator::Here site = {}) {
  emulator::cluster_arrive(site);
  emulator::cluster_wait(site);
}

// The same address in the shared memory of the block with that rank, for mbarrier_arrive_cluster and store_async.
__forceinline__ uint32_t map_shared_rank(uint32_t address, int rank, emulator::Here site = {}) {
  return emulator::map_shared_rank(address, rank, site);
}

// Writes 4 or 16 bytes, with that alignment, into the shared memory of a block, whose mbarrier counts them like those
// of a copy. Both are addresses from map_shared_rank for the same block.
__forceinline__ void store_async(uint32_t mapped, uint32_t value, uint32_t mapped_barrier, emulator::Here site = {}) {
  emulator::store_async(mapped, &value, sizeof value, mapped_barrier, site);
}
__forceinline__ void store_async(uint32_t mapped, uint4 value, uint32_t mapped_barrier, emulator::Here site = {}) {
  emulator::store_async(mapped, &value, sizeof value, mapped_barrier, site);
}
