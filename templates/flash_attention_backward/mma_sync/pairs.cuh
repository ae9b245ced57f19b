// Pairs of tiles of rows that are read together (Q and dO, or K and V): one slot is read while others are filled.
#pragma once
#include "flash_attention/rows.cuh"
#include "thread.cuh"

// Source: `int count`, how many pairs there are; kSlotBytes that one takes; and load(s_slot, index), by which all
// threads start copying one, in turn.
template <class Source, int kStages>
struct PairRing {
  static_assert(kStages >= 2, "one slot is read while at least one is filled");

  Source source;
  uint32_t s_slots;
  int issued = 0;

  // Past the last pair, an empty group keeps the count of groups.
  __device__ __forceinline__ void issue() {
    if (issued < source.count) source.load(slot(issued), issued);
    cp_async_commit();
    ++issued;
  }
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) issue();
  }
  // Waits for the oldest pair and returns its address. Every thread has then left the pair before it, whose slot is
  // filled again; the next one to be filled is the one returned.
  __device__ __forceinline__ uint32_t acquire() {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    issue();
    return slot(issued);
  }
  __device__ __forceinline__ uint32_t slot(unsigned index) const { return s_slots + index % kStages * Source::kSlotBytes; }
};
