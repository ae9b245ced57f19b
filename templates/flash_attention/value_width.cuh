// The width of rows of V and O, for kernels whose values may have a different width than keys.
#pragma once

// DV of traits that define it, otherwise the width of Q and K.
template <class Traits, class = int>
struct ValueWidth {
  static constexpr int value = Traits::D;
};
template <class Traits>
struct ValueWidth<Traits, decltype(int(Traits::DV))> {
  static constexpr int value = Traits::DV;
};
