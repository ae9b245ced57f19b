// The slot of the key at a position in K and V.
#pragma once

template <bool kRolling>
struct Slots {
  int slots, sinks;

  __device__ __forceinline__ int operator()(int key) const {
    return kRolling && key >= slots ? sinks + (key - sinks) % (slots - sinks) : key;
  }
};
