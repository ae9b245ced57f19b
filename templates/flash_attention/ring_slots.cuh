// Addresses of the slots of a ring, in which tiles of K and V alternate.
#pragma once

// With an even number of slots, every second one is for V, with the size of its tiles; with an odd number, any slot
// holds either.
template <int kStages, int kKeyBytes, int kValueBytes>
struct RingSlots {
  static constexpr int kPairBytes = kKeyBytes + kValueBytes;
  static constexpr int kLargest = kKeyBytes > kValueBytes ? kKeyBytes : kValueBytes;
  static constexpr int kBytes = kStages % 2 == 0 ? kStages / 2 * kPairBytes : kStages * kLargest;

  // Byte offset of the slot of the `tile`-th tile, of V if `is_v`. With two slots, one is for K and the other for V.
  static __device__ __forceinline__ unsigned offset(unsigned tile, bool is_v) {
    if (kStages == 2) return is_v ? kKeyBytes : 0;
    if (kStages % 2 == 1 || kKeyBytes == kValueBytes) return tile % kStages * kLargest;
    return tile % kStages / 2 * kPairBytes + (is_v ? kKeyBytes : 0);
  }
};
