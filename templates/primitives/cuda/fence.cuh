// Fences between the proxies that access shared memory (sm_90).
#pragma once

// Makes this thread's ordinary stores to shared memory visible to TMA and wgmma, once a barrier follows.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Makes mbarrier_init visible to the async proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
