// The order of keys and columns with which scores can be used as an operand directly from registers, and V is read in
// vectors.
#pragma once
#include "flash_attention/rows.cuh"
#include "flash_attention/span.cuh"

// A lane's scores are columns 2t and 2t + 1 of 8 keys, t = lane % 4; as operand A they are columns t and t + 4 of the
// contraction. The assignment of keys to columns is arbitrary as long as the rows of K and V use the same order: lane t
// reads the rows first(t) and first(t) + kApart of V. The four rows that a warp reads at once are in different pairs of
// chunks modulo 128 bytes.
template <class LayoutV>
struct KeyOrder {
  static constexpr int kApart = LayoutV::kGroup == 1 ? 1 : 8 / LayoutV::kGroup;

  static constexpr __host__ __device__ int first(int t) { return t % kApart + t / kApart * 2 * kApart; }
  static constexpr __host__ __device__ int of(int column) { return first(column / 2) + column % 2 * kApart; }
};

// This lane's ldmatrix offset in 16 keys of K, for operand B: both chunks of a row are loaded into one pair of
// registers.
template <class Layout, class LayoutV>
__device__ __forceinline__ uint32_t keys_in_order(int lane) {
  return Layout::offset(lane / 16 * 8 + KeyOrder<LayoutV>::of(lane % 8), lane / 8 % 2);
}

// kN 8-wide column tiles of O in groups of four, then one group of two, then one of one. In a group, column c of tile j
// is column c · kTiles + j: the columns with equal c are adjacent, and a lane reads them in V at once.
template <int kN>
struct ColumnGroups {
  static constexpr int kFours = kN / 4, kTwo = kN / 2 % 2, kOne = kN % 2;

  // Calls take(Constant<kTiles>, first tile).
  template <class Take>
  static __device__ __forceinline__ void each(Take const& take) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) take(Constant<4>{}, 4 * i);
    if constexpr (kTwo) take(Constant<2>{}, 4 * kFours);
    if constexpr (kOne) take(Constant<1>{}, 4 * kFours + 2 * kTwo);
  }
};

// This lane's byte offsets in 8 keys of V, in both of its rows, for groups of each size.
template <class LayoutV, int kN>
struct LaneOfV {
  using Groups = ColumnGroups<kN>;

  uint32_t fours[2], two[2], one[2];

  // `column`: first column of O in V.
  __device__ __forceinline__ LaneOfV(int lane, int column) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int const row = KeyOrder<LayoutV>::first(lane % 4) + h * KeyOrder<LayoutV>::kApart, c = lane / 4;
      fours[h] = element(row, column + c * 4);
      two[h] = element(row, column + Groups::kFours * 32 + c * 2);
      one[h] = element(row, column + Groups::kFours * 32 + Groups::kTwo * 16 + c);
    }
  }
  // Offset for the group of kTiles tiles that starts at tile `first`; steps of 128 bytes do not change the swizzle.
  template <int kTiles>
  __device__ __forceinline__ uint32_t at(int h, int first) const {
    return kTiles == 4 ? fours[h] + first * 32 : kTiles == 2 ? two[h] : one[h];
  }

 private:
  static __device__ __forceinline__ uint32_t element(int row, int column) {
    return LayoutV::offset(row, column / 4) + column % 4 * 4;
  }
};
