// Atomic accesses to global memory with gpu scope and an ordering in the name: blocks use them to wait for each other.
// T is any type of 4 or 8 bytes; a plain atomicAdd and similar functions are relaxed.
#pragma once
#include "types.cuh"

namespace emulator {
template <class T>
__forceinline__ T load_value(T const* p, Order order, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "an atomic access has 4 or 8 bytes");
  uint64_t const bits = atomic_load(p, sizeof(T), order, site);
  T value;
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
__forceinline__ void store_value(T* p, T value, Order order, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "an atomic access has 4 or 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  atomic_store(p, bits, sizeof(T), order, site);
}
}  // namespace emulator

template <class T>
__forceinline__ T load_acquire(T const* p, emulator::Here site = {}) {
  return emulator::load_value(p, emulator::Order::acquire, site);
}
template <class T>
__forceinline__ T load_relaxed(T const* p, emulator::Here site = {}) {
  return emulator::load_value(p, emulator::Order::relaxed, site);
}
template <class T>
__forceinline__ void store_release(T* p, T value, emulator::Here site = {}) {
  emulator::store_value(p, value, emulator::Order::release, site);
}
template <class T>
__forceinline__ void store_relaxed(T* p, T value, emulator::Here site = {}) {
  emulator::store_value(p, value, emulator::Order::relaxed, site);
}

// Each returns the previous value.
__forceinline__ uint32_t atomic_add_acq_rel(uint32_t* p, uint32_t value, emulator::Here site = {}) {
  return emulator::modify(p, [=](uint32_t old) { return old + value; }, emulator::Order::acq_rel, site);
}
__forceinline__ uint32_t atomic_add_release(uint32_t* p, uint32_t value, emulator::Here site = {}) {
  return emulator::modify(p, [=](uint32_t old) { return old + value; }, emulator::Order::release, site);
}
__forceinline__ uint32_t atomic_add_relaxed(uint32_t* p, uint32_t value, emulator::Here site = {}) {
  return emulator::modify(p, [=](uint32_t old) { return old + value; }, emulator::Order::relaxed, site);
}

// Call in every loop that waits for another thread's store, so that other threads run.
__forceinline__ void backoff(emulator::Here site = {}) { emulator::backoff(site); }
