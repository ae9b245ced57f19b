// Two chunks share one stored state and one stored gradient: the second makes the state before it by a step of forward
// through the first, the first the gradient after it by a step of reverse through the second, a warp its channels only.
#pragma once
#include "image.cuh"
#include "movmatrix.cuh"
#include "slab.cuh"
#include "tile.cuh"

enum class Made { kNothing, kState, kGradient };

// What the chunk beside this one left, and what prepare made of it; pointers are this lane's.
template <class T>
struct Neighbour {
  unsigned char const* image;
  uint4 const *r, *y;  // [V / 16] blocks
  View<T const> d_o;
  int tokens;  // from its first to the end of the sequence
};

// The step for 16 kPairs channels, of blocks of 16 channels × 16 values that are operands B.
template <class T, int K, int kPairs, Made kMade>
struct Beside {
  using Image = ::Image<K>;
  static constexpr int kProducts = kMade == Made::kState ? 1 : 2;
  using Values = uint32_t[kProducts][4];  // [tokens, values] as operands B

  Neighbour<T> from;
  int lane;
  uint32_t r_a[kPairs][kProducts][4];  // [channels, tokens]
  float decay[kPairs][2];              // of the lane's rows of a block

  __device__ __forceinline__ Beside(Neighbour<T> const& neighbour, int channel, int this_lane)
      : from(neighbour), lane(this_lane) {
    float const* g_beta = reinterpret_cast<float const*>(from.image + Image::kBeta);
    float const beta[2] = {g_beta[lane / 4], g_beta[lane / 4 + 8]}, one[2] = {1, 1};
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      int const first = channel + 16 * pair;
      transpose_tile(r_a[pair][0], kMade == Made::kState ? Image::kUpdates : Image::kKeys, first, beta);
      if constexpr (kMade == Made::kGradient) transpose_tile(r_a[pair][1], Image::kQueries, first, one);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const row = first + 8 * half + lane / 4;
        decay[pair][half] = *reinterpret_cast<float const*>(from.image + Image::decay(row / 2) + row % 2 * 4);
      }
    }
  }
  // Operand A of 16 channels of a tile of the image, times a number a token.
  __device__ __forceinline__ void transpose_tile(uint32_t (&r)[4], int tile, int channel, float const (&of)[2]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      uint32_t const at = Image::Rows::offset(lane / 4 + e / 2 * 8, channel / 8 + e % 2) + lane % 4 * 4;
      uint32_t const pair = *reinterpret_cast<uint32_t const*>(from.image + tile + at);
      r[e] = movmatrix_trans(pack<bf16>(unpack_lo<bf16>(pair) * of[e / 2], unpack_hi<bf16>(pair) * of[e / 2]));
    }
  }

  __device__ __forceinline__ void load(Values& r, int step) const {
    if constexpr (kMade == Made::kState) {
      uint4 const errors = from.r[32 * step];
      r[0][0] = errors.x, r[0][1] = errors.y, r[0][2] = errors.z, r[0][3] = errors.w;
    } else {
      uint4 const y = from.y[32 * step];
      uint32_t r_do[4];
      load_values(r_do, from.d_o.first + 16 * step, from.d_o.stride, from.tokens, lane);
      r[0][0] = movmatrix_trans(y.x), r[0][1] = movmatrix_trans(y.y);
      r[0][2] = movmatrix_trans(y.z), r[0][3] = movmatrix_trans(y.w);
#pragma unroll
      for (int e = 0; e < 4; ++e) r[1][e] = movmatrix_trans(r_do[e]);
    }
  }
  // The block after the step, from that before it.
  __device__ __forceinline__ uint4 make(uint4 const& x, int pair, Values const& r) const {
    float const low = decay[pair][0], high = decay[pair][1];
    Tile left = {unpack_lo<bf16>(x.x) * low, unpack_hi<bf16>(x.x) * low, unpack_lo<bf16>(x.z) * high,
                 unpack_hi<bf16>(x.z) * high};
    Tile right = {unpack_lo<bf16>(x.y) * low, unpack_hi<bf16>(x.y) * low, unpack_lo<bf16>(x.w) * high,
                  unpack_hi<bf16>(x.w) * high};
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      mma_m16n8k16<bf16>(left, r_a[pair][product], {r[product][0], r[product][1]});
      mma_m16n8k16<bf16>(right, r_a[pair][product], {r[product][2], r[product][3]});
    }
    return make_uint4(pack<bf16>(left[0], left[1]), pack<bf16>(right[0], right[1]), pack<bf16>(left[2], left[3]),
                      pack<bf16>(right[2], right[3]));
  }
};

// Nothing to make: what the scans left is this chunk's.
template <class T, int K, int kPairs>
struct Beside<T, K, kPairs, Made::kNothing> {
  struct Values {};
  __device__ __forceinline__ void load(Values&, int) const {}
  __device__ __forceinline__ uint4 make(uint4 const& x, int, Values const&) const { return x; }
};
