// The keys of a tile that a warp computes: all of them, or a narrower span that contains all keys its rows attend.
#pragma once

struct Span {
  bool any;     // whether the warp computes any keys of the tile
  bool narrow;  // whether it computes only a narrow span
  int first;    // key of the tile at which the span starts

  static __device__ __forceinline__ constexpr Span whole(bool any = true) { return {any, false, 0}; }
};

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Calls take(Constant<number of keys>, first key): kNarrow (0: there is no narrow span), or kWhole from key 0 on.
template <int kNarrow, int kWhole, class Take>
__device__ __forceinline__ void on_span(Span const& span, Take const& take) {
  if (!span.any) return;
  if constexpr (kNarrow > 0) {
    if (span.narrow) return take(Constant<kNarrow>{}, span.first);
  }
  take(Constant<kWhole>{}, 0);
}
