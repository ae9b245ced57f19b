// Tiles of K and V, alternating in a ring of slots: one slot is read while the others are on their way.
#pragma once
#include "flash_attention/rows.cuh"
#include "thread.cuh"

// Walk tells which keys are visited: `int tiles`; `int key(int tile)`, the first key of a tile; `int end(int tile)`, the
// key before which its keys end: those from there on become zeros.
template <class T, class Layout, class Walk, int BN, int kStages, int kThreads>
struct Ring {
  static_assert(kStages >= 2, "one slot is read while at least one is filled");
  static constexpr int kSlotBytes = BN * Layout::kRowBytes;

  Walk walk;
  T const *g_k, *g_v;  // key 0
  int64_t k_stride, v_stride;
  uint32_t s_slots;
  int issued = 0;  // tiles of K and V together

  // Starts copying the next tile; past the last one, an empty group keeps the count of groups.
  __device__ __forceinline__ void issue() {
    if (issued < 2 * walk.tiles) {
      int const key = walk.key(issued / 2);
      bool const is_v = issued % 2;
      int64_t const stride = is_v ? v_stride : k_stride;
      T const* g_rows = (is_v ? g_v : g_k) + key * stride;
      load_rows<Layout, BN, kThreads>(slot(issued), g_rows, stride, walk.end(issued / 2) - key);
    }
    cp_async_commit();
    ++issued;
  }
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) issue();
  }
  // Waits for the oldest tile and returns its address. Every thread has then left the tile before it, whose slot is
  // filled again; the next one to be filled is the one returned.
  __device__ __forceinline__ uint32_t acquire() {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    issue();
    return slot(issued);
  }
  __device__ __forceinline__ uint32_t slot(unsigned tile) const { return s_slots + tile % kStages * kSlotBytes; }
};
