// How wide rows of V and O are, for kernels whose values may be of another width than keys.
#pragma once

// DV of choices that have one, else as many elements as Q and K have.
template <class Traits, class = int>
struct ValueWidth {
  static constexpr int value = Traits::D;
};
template <class Traits>
struct ValueWidth<Traits, decltype(int(Traits::DV))> {
  static constexpr int value = Traits::DV;
};
