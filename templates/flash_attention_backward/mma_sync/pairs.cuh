// Pairs of tiles of rows that are loaded together (Q and dO, or K and V): one slot is read while others are filled.
#pragma once
#include "flash_attention/rows.cuh"
#include "thread.cuh"

// Source: `int count`, the number of pairs; kSlotBytes, the size of one; and load(s_slot, index), with which all
// threads start copying one.
template <class Source, int kStages>
struct PairRing {
  static_assert(kStages >= 2, "one slot is read while at least one is filled");

  Source source;
  uint32_t s_slots;
  int issued = 0;

  // After the last pair, an empty group keeps the group count consistent.
  __device__ __forceinline__ void issue() {
    if (issued < source.count) source.load(slot(issued), issued);
    cp_async_commit();
    ++issued;
  }
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) issue();
  }
  // Waits for the oldest pair and returns its address. Every thread has then finished with the previous pair, whose
  // slot is refilled.
  __device__ __forceinline__ uint32_t acquire() {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    issue();
    return slot(issued);
  }
  __device__ __forceinline__ uint32_t slot(unsigned index) const { return s_slots + index % kStages * Source::kSlotBytes; }
};
