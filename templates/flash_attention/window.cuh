// The keys a query attends with a window around its own position: `left` before it, and `right` after it.
#pragma once
#include "flash_attention/rows.cuh"
#include "flash_attention/sequences.cuh"
#include "flash_attention/span.cuh"
#include "types.cuh"

// Sets scores of keys that a query does not attend to -inf: all except those in [begin(i), end(i)) for the lane's row 8
// i; the lane's keys start at `key`, and the second of each pair of columns is kApart keys after the first.
template <int kApart = 1, int kM, int kN, class Begin, class End>
__device__ __forceinline__ void mask_outside(float (&r_s)[kM][kN][4], int key, Begin const& begin, End const& end) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    int const first = begin(i) - key, hidden = end(i) - key;
#pragma unroll
    for (int e = 0; e < 2 * kN; ++e) {
      int const j = e / 2 * 8 + e % 2 * kApart;
      if (j < first || j >= hidden) r_s[i / 2][e / 2][i % 2 * 2 + e % 2] = -kInfinity;
    }
  }
}

struct Window {
  int left, right;

  // The first key that a query attends, if any, and the end of its keys; both are nondecreasing in the query.
  __device__ __forceinline__ int begin(int query, Sequence const& of) const {
    return min(max(query + of.keys - of.queries - left, 0), of.keys);
  }
  __device__ __forceinline__ int end(int query, Sequence const& of) const {
    return max(min(query + of.keys - of.queries + right + 1, of.keys), 0);
  }
  // The part of the sequence from the first key on that this or a later query attends.
  __device__ __forceinline__ Sequence from(int query, Sequence of) const {
    int const before = begin(query, of);
    of.first_key += before;
    of.keys -= before;
    return of;
  }
  // Sets scores of the keys from `key` on to -inf if a query does not attend them; the lane's row 8 i is query row + 8
  // i.
  template <int kApart = 1, int kM, int kN>
  __device__ __forceinline__ void hide(float (&r_s)[kM][kN][4], int key, int row, Sequence const& of) const {
    mask_outside<kApart>(
        r_s, key, [&](int i) { return begin(row + i * 8, of); }, [&](int i) { return end(row + i * 8, of); });
  }
};

// The mask of a warp for a tile, as attend() requires; `of` starts at the first key of the block. kApart: see
// mask_outside.
template <class Block, int kApart = 1>
struct WindowMask {
  static constexpr int kNarrow = 0;

  Window window;
  Sequence of;
  int row;                 // the lane's first row
  int begin, end;          // keys that any of the warp's rows attends
  int all_from, unmasked;  // keys that all of them attend

  // `row`: the warp's first row; its rows end at `end`.
  __device__ __forceinline__ WindowMask(Window const& window, Sequence const& of, int row, int end, int lane)
      : window(window),
        of(of),
        row(row + lane / 4),
        begin(window.begin(row, of)),
        end(end),
        all_from(window.begin(row + Block::kRows - 1, of)),
        unmasked(window.end(row, of)) {}
  __device__ __forceinline__ Span span(int key) const { return Span::whole(key < end && key + Block::BN > begin); }
  __device__ __forceinline__ void hide(float (&r_s)[Block::kM][Block::kKeys / 8][4], int key, int first,
                                       int column) const {
    int const from = key + first;
    if (from < all_from || from + Block::kKeys > unmasked) window.template hide<kApart>(r_s, from + column, row, of);
  }
};
