// How wide rows of V and O are, for kernels whose values may be of another width than keys.
#pragma once

// DV of choices that have one, else as many elements as Q and K have.
template <class Choice, class = int>
struct ValueWidth {
  static constexpr int value = Choice::D;
};
template <class Choice>
struct ValueWidth<Choice, decltype(int(Choice::DV))> {
  static constexpr int value = Choice::DV;
};
