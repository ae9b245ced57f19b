// Two chunks share one stored state and one stored gradient: the second makes the state before it by a step of forward
// through the first, the first the gradient after it by a step of reverse through the second, a warp its channels only.
#pragma once
#include "image.cuh"
#include "slab.cuh"

enum class Made { kNothing, kState, kGradient };

// What the chunk beside this one left, and what prepare made of it; pointers are this lane's.
template <class T>
struct Neighbour {
  unsigned char const* image;
  uint4 const *r, *y;  // [V / 16] blocks
  View<T const> d_o;
  int tokens;  // from its first to the end of the sequence
};

// The step for 16 kPairs channels, of blocks of 16 channels × 16 values.
template <class T, int K, class Operands, int kPairs, Made kMade>
struct Beside {
  using Image = ::Image<K, Operands>;
  using Matrix = typename Operands::template Matrix<K>;
  using Block = typename Operands::Block;
  using Factors = typename Operands::TokenFactors;
  static constexpr int kProducts = kMade == Made::kState ? 1 : 2;
  using Values = Block[kProducts];  // [values, tokens]

  Neighbour<T> from;
  int lane;
  Block r_a[kPairs][kProducts];  // [channels, tokens]
  float decay[kPairs][2];        // of the lane's rows of a block

  __device__ __forceinline__ Beside(Neighbour<T> const& neighbour, int channel, int this_lane)
      : from(neighbour), lane(this_lane) {
    Factors beta, one;
    Operands::load_factors(beta, reinterpret_cast<float const*>(from.image + Image::kBeta), lane);
#pragma unroll
    for (float& each : one) each = 1;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      int const step = channel / 16 + pair;
      constexpr int kKeys = kMade == Made::kState ? Image::kUpdateColumns : Image::kKeyColumns;
      Matrix::columns(r_a[pair][0], from.image + kKeys, step, beta, lane);
      if constexpr (kMade == Made::kGradient)
        Matrix::columns(r_a[pair][1], from.image + Image::kQueryColumns, step, one, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const row = 16 * step + 8 * half + lane / 4;
        decay[pair][half] = *reinterpret_cast<float const*>(from.image + Image::decay(row / 2) + row % 2 * 4);
      }
    }
  }

  __device__ __forceinline__ void load(Values& r, int step) const {
    if constexpr (kMade == Made::kState) {
      Operands::template load<Side::kRight>(r[0], from.r + Operands::kBlock * step);
    } else {
      Block r_y, r_do;
      Operands::template load<Side::kLeft>(r_y, from.y + Operands::kBlock * step);
      Operands::load_values(r_do, from.d_o.first + 16 * step, from.d_o.stride, from.tokens, lane);
      Operands::transpose(r[0], r_y);
      Operands::transpose(r[1], r_do);
    }
  }
  // The block after the step takes the place of that before it.
  __device__ __forceinline__ void make(Block& x, int pair, Values const& r) const {
    Tile left, right;
    Operands::unpack(left, right, x);
#pragma unroll
    for (int e = 0; e < 4; ++e) left[e] *= decay[pair][e / 2], right[e] *= decay[pair][e / 2];
#pragma unroll
    for (int product = 0; product < kProducts; ++product)
      Operands::multiply(left, right, r_a[pair][product], r[product]);
    Operands::pack(x, left, right);
  }
};

// Nothing to make: what the scans left is this chunk's.
template <class T, int K, class Operands, int kPairs>
struct Beside<T, K, Operands, kPairs, Made::kNothing> {
  struct Values {};
  __device__ __forceinline__ void load(Values&, int) const {}
  __device__ __forceinline__ void make(typename Operands::Block&, int, Values const&) const {}
};
