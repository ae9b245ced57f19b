// Which keys of a tile a warp takes: all of them, or a narrower stretch that holds all that its rows attend.
#pragma once

struct Span {
  bool any;     // else none
  bool narrow;  // only a narrow stretch,
  int first;    // from this key of the tile on

  static __device__ __forceinline__ constexpr Span whole(bool any = true) { return {any, false, 0}; }
};

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Calls take(Constant<number of keys>, first key): kNarrow (0: there is no narrow stretch), or kWhole from key 0 on.
template <int kNarrow, int kWhole, class Take>
__device__ __forceinline__ void on_span(Span const& span, Take const& take) {
  if (!span.any) return;
  if constexpr (kNarrow > 0) {
    if (span.narrow) return take(Constant<kNarrow>{}, span.first);
  }
  take(Constant<kWhole>{}, 0);
}
