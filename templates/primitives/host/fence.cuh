// Fences between the proxies that access shared memory.
#pragma once
#include "types.cuh"

// Makes this thread's ordinary stores to shared memory visible to TMA and wgmma, once a barrier follows.
__forceinline__ void fence_proxy_async() { emulator::fence_proxy_async(); }

// Makes mbarrier_init visible to the async proxy.
__forceinline__ void fence_mbarrier_init() { emulator::fence_mbarrier_init(); }
