// Clusters (sm_90): blocks that are co-scheduled and can access each other's shared memory. The cluster size, along x,
// is set in the kernel's __cluster_dims__(n, 1, 1) and in Launch.cluster of its plan.
#pragma once
#include "types.cuh"

// This block's rank in its cluster, and the cluster size.
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ int cluster_size() {
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// The cluster barrier, called by complete warps: after the wait, writes that any thread of the cluster made before its
// arrival are visible.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The same address in the shared memory of the block with that rank, for mbarrier_arrive_cluster and store_async.
__device__ __forceinline__ uint32_t map_shared_rank(uint32_t address, int rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Writes 4 or 16 bytes, with that alignment, into the shared memory of a block, whose mbarrier counts them like those
// of a copy. Both are addresses from map_shared_rank for the same block.
__device__ __forceinline__ void store_async(uint32_t mapped, uint32_t value, uint32_t mapped_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(mapped),
               "r"(value), "r"(mapped_barrier)
               : "memory");
}
__device__ __forceinline__ void store_async(uint32_t mapped, uint4 value, uint32_t mapped_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(mapped),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(mapped_barrier)
      : "memory");
}
