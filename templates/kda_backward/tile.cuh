// Sixteen tokens of eight channels in the registers of a warp, in the order of mma's accumulators.
#pragma once
#include "mma.cuh"
#include "movmatrix.cuh"
#include "types.cuh"

// Two neighbours of a row of global memory.
template <class T>
__device__ __forceinline__ float2 load_pair(T const* p, bool there) {
  uint32_t const pair = there ? *reinterpret_cast<uint32_t const*>(p) : 0;
  return make_float2(unpack_lo<T>(pair), unpack_hi<T>(pair));
}
template <>
__device__ __forceinline__ float2 load_pair<float>(float const* p, bool there) {
  return there ? *reinterpret_cast<float2 const*>(p) : make_float2(0, 0);
}
template <class T>
__device__ __forceinline__ void store_pair(T* p, float lo, float hi) {
  *reinterpret_cast<uint32_t*>(p) = pack<T>(lo, hi);
}
template <>
__device__ __forceinline__ void store_pair<float>(float* p, float lo, float hi) {
  *reinterpret_cast<float2*>(p) = make_float2(lo, hi);
}

// Element 2 half + c: token lane / 4 + 8 half, channel 2 (lane % 4) + c.
using Tile = float[4];

// `rows`: the tile's first token and channel, of which the first `tokens` tokens exist; the others are zeros.
template <class T>
__device__ __forceinline__ void load_tile(Tile& r, T const* rows, int64_t stride, int tokens, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int const token = lane / 4 + 8 * half;
    float2 const pair = load_pair(rows + token * stride + lane % 4 * 2, token < tokens);
    r[2 * half] = pair.x, r[2 * half + 1] = pair.y;
  }
}

template <class T>
__device__ __forceinline__ void store_tile(T* rows, int64_t stride, Tile const& r, int tokens, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int const token = lane / 4 + 8 * half;
    if (token < tokens) store_pair(rows + token * stride + lane % 4 * 2, r[2 * half], r[2 * half + 1]);
  }
}

// Sums over the tokens up to each, itself included.
__device__ __forceinline__ void sum_up(Tile& r, int lane) {
#pragma unroll
  for (int e = 0; e < 4; ++e)
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      float const other = __shfl_up_sync(0xffffffff, r[e], lanes);
      r[e] += lane >= lanes ? other : 0;
    }
#pragma unroll
  for (int c = 0; c < 2; ++c) r[2 + c] += __shfl_sync(0xffffffff, r[c], 28 + lane % 4);
}
// Sums over the tokens from each on, itself included.
__device__ __forceinline__ void sum_down(Tile& r, int lane) {
#pragma unroll
  for (int e = 0; e < 4; ++e)
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      float const other = __shfl_down_sync(0xffffffff, r[e], lanes);
      r[e] += lane + lanes < 32 ? other : 0;
    }
#pragma unroll
  for (int c = 0; c < 2; ++c) r[c] += __shfl_sync(0xffffffff, r[2 + c], lane % 4);
}
// The last token's elements, of the lane's two channels; the sum over all tokens.
__device__ __forceinline__ float2 last_token(Tile const& r, int lane) {
  return make_float2(__shfl_sync(0xffffffff, r[2], 28 + lane % 4), __shfl_sync(0xffffffff, r[3], 28 + lane % 4));
}
__device__ __forceinline__ float2 token_sum(Tile const& r) {
  float2 sum = make_float2(r[0] + r[2], r[1] + r[3]);
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) {
    sum.x += __shfl_xor_sync(0xffffffff, sum.x, lanes);
    sum.y += __shfl_xor_sync(0xffffffff, sum.y, lanes);
  }
  return sum;
}

// Over the lanes that hold a row of tokens.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Operands A are uint32_t[4], operands B uint32_t[2], as mma_m16n8k16 takes them.
// The rows of A are tokens, its columns the channels of two tiles.
__device__ __forceinline__ void pack_rows(uint32_t (&r_a)[4], Tile const& left, Tile const& right) {
  r_a[0] = pack<bf16>(left[0], left[1]);
  r_a[1] = pack<bf16>(left[2], left[3]);
  r_a[2] = pack<bf16>(right[0], right[1]);
  r_a[3] = pack<bf16>(right[2], right[3]);
}
// A transposed, as an operand A.
__device__ __forceinline__ void transpose(uint32_t (&r_t)[4], uint32_t const (&r_a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) r_t[i] = movmatrix_trans(r_a[i / 2 + i % 2 * 2]);
}
// The rows of B are tokens, its columns the channels of a tile.
__device__ __forceinline__ void pack_columns(uint32_t (&r_b)[2], Tile const& r) {
  r_b[0] = movmatrix_trans(pack<bf16>(r[0], r[1]));
  r_b[1] = movmatrix_trans(pack<bf16>(r[2], r[3]));
}

// A pair of T as the pair of bf16 that products take.
template <class T>
__device__ __forceinline__ uint32_t operand(uint32_t pair) {
  return pack<bf16>(unpack_lo<T>(pair), unpack_hi<T>(pair));
}
template <>
__device__ __forceinline__ uint32_t operand<bf16>(uint32_t pair) { return pair; }

// Sixteen tokens of sixteen values as operand A; `rows` as in load_tile.
template <class T>
__device__ __forceinline__ void load_values(uint32_t (&r_a)[4], T const* rows, int64_t stride, int tokens, int lane) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    int const token = lane / 4 + e % 2 * 8;
    uint32_t const* at = reinterpret_cast<uint32_t const*>(rows + token * stride + e / 2 * 8 + lane % 4 * 2);
    r_a[e] = operand<T>(token < tokens ? *at : 0);
  }
}
