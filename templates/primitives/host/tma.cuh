// cp.async.bulk.tensor: copies of boxes of a 1-D to 5-D tensor, given by its tensor map; coordinates innermost first,
// in elements. Elements outside the tensor are read as zero and not written. One thread issues; a map is a
// __grid_constant__.
#pragma once
#include "types.cuh"

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

__forceinline__ void tma_prefetch(TensorMap const*) {}

// Global to shared; completion is counted in bytes on `barrier`.
__forceinline__ void tma_load(uint32_t dst, TensorMap const* map, uint32_t barrier, int c0, emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {1, {c0}}, emulator::kThisBlock, site);
}
__forceinline__ void tma_load(uint32_t dst, TensorMap const* map, uint32_t barrier, int c0, int c1,
                              emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {2, {c0, c1}}, emulator::kThisBlock, site);
}
__forceinline__ void tma_load(uint32_t dst, TensorMap const* map, uint32_t barrier, int c0, int c1, int c2,
                              emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {3, {c0, c1, c2}}, emulator::kThisBlock, site);
}
__forceinline__ void tma_load(uint32_t dst, TensorMap const* map, uint32_t barrier, int c0, int c1, int c2, int c3,
                              emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {4, {c0, c1, c2, c3}}, emulator::kThisBlock, site);
}
__forceinline__ void tma_load(uint32_t dst, TensorMap const* map, uint32_t barrier, int c0, int c1, int c2, int c3,
                              int c4, emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {5, {c0, c1, c2, c3, c4}}, emulator::kThisBlock, site);
}

// Global to the shared memory of every block of the cluster whose rank's bit is set in `blocks`: to `dst` and `barrier`
// of each.
__forceinline__ void tma_load_multicast(uint32_t dst, TensorMap const* map, uint32_t barrier, int blocks, int c0,
                                        emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {1, {c0}}, blocks, site);
}
__forceinline__ void tma_load_multicast(uint32_t dst, TensorMap const* map, uint32_t barrier, int blocks, int c0,
                                        int c1, emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {2, {c0, c1}}, blocks, site);
}
__forceinline__ void tma_load_multicast(uint32_t dst, TensorMap const* map, uint32_t barrier, int blocks, int c0,
                                        int c1, int c2, emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {3, {c0, c1, c2}}, blocks, site);
}
__forceinline__ void tma_load_multicast(uint32_t dst, TensorMap const* map, uint32_t barrier, int blocks, int c0,
                                        int c1, int c2, int c3, emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {4, {c0, c1, c2, c3}}, blocks, site);
}
__forceinline__ void tma_load_multicast(uint32_t dst, TensorMap const* map, uint32_t barrier, int blocks, int c0,
                                        int c1, int c2, int c3, int c4, emulator::Here site = {}) {
  emulator::tma_load(dst, map, barrier, {5, {c0, c1, c2, c3, c4}}, blocks, site);
}

// Shared to global, in this thread's open bulk group (bulk.cuh commits and waits).
__forceinline__ void tma_store(TensorMap const* map, uint32_t src, int c0, emulator::Here site = {}) {
  emulator::tma_store(map, src, {1, {c0}}, site);
}
__forceinline__ void tma_store(TensorMap const* map, uint32_t src, int c0, int c1, emulator::Here site = {}) {
  emulator::tma_store(map, src, {2, {c0, c1}}, site);
}
__forceinline__ void tma_store(TensorMap const* map, uint32_t src, int c0, int c1, int c2, emulator::Here site = {}) {
  emulator::tma_store(map, src, {3, {c0, c1, c2}}, site);
}
__forceinline__ void tma_store(TensorMap const* map, uint32_t src, int c0, int c1, int c2, int c3,
                               emulator::Here site = {}) {
  emulator::tma_store(map, src, {4, {c0, c1, c2, c3}}, site);
}
__forceinline__ void tma_store(TensorMap const* map, uint32_t src, int c0, int c1, int c2, int c3, int c4,
                               emulator::Here site = {}) {
  emulator::tma_store(map, src, {5, {c0, c1, c2, c3, c4}}, site);
}
