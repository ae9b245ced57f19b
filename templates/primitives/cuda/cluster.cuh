// Clusters (sm_90): blocks that run side by side and reach each other's shared memory. Their number, along x, stands in
// the kernel's __cluster_dims__(n, 1, 1) and in its plan's Launch.cluster.
#pragma once
#include "types.cuh"

// This block's number in its cluster, and how many blocks that has.
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

// The cluster's barrier, for whole warps: after the wait, writes that any thread of the cluster made before its arrival
// are visible.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The same address in the shared memory of the block of that rank, for mbarrier_arrive_cluster and store_async.
__device__ __forceinline__ uint32_t map_shared_rank(uint32_t address, int rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Writes 4 or 16 bytes, aligned to as many, into the shared memory of a block, whose mbarrier counts them as it does a
// copy's. Both are addresses of map_shared_rank, of one block.
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
