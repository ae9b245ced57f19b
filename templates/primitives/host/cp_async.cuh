// cp.async: copies from global to shared memory, which a thread commits and waits for in groups.
#pragma once
#include "types.cuh"

// Copies `src_bytes` and fills the rest of BYTES with zeros; both addresses are BYTES aligned.
template <int BYTES>
__forceinline__ void cp_async(uint32_t dst, void const* src, int src_bytes = BYTES, emulator::Here site = {}) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulator::cp_async(dst, src, BYTES, src_bytes, site);
}

__forceinline__ void cp_async_commit() { emulator::cp_async_commit(); }

// Waits until at most the newest N of this thread's groups are in flight.
template <int N>
__forceinline__ void cp_async_wait() {
  emulator::cp_async_wait(N);
}
