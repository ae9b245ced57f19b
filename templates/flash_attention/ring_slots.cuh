// Where the slots of a ring lie, which tiles of K and tiles of V take in turn.
#pragma once

// Of an even number of slots every second one is V's, with the bytes of its tiles; of an odd number each is either's.
template <int kStages, int kKeyBytes, int kValueBytes>
struct RingSlots {
  static constexpr int kPairBytes = kKeyBytes + kValueBytes;
  static constexpr int kLargest = kKeyBytes > kValueBytes ? kKeyBytes : kValueBytes;
  static constexpr int kBytes = kStages % 2 == 0 ? kStages / 2 * kPairBytes : kStages * kLargest;

  // The bytes before the slot of the `tile`-th tile, of V if `is_v`. Of two slots K has the one and V
  // the other.
  static __device__ __forceinline__ unsigned offset(unsigned tile, bool is_v) {
    if (kStages == 2) return is_v ? kKeyBytes : 0;
    if (kStages % 2 == 1 || kKeyBytes == kValueBytes) return tile % kStages * kLargest;
    return tile % kStages / 2 * kPairBytes + (is_v ? kKeyBytes : 0);
  }
};
