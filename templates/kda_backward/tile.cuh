// Sixteen tokens of eight channels in the registers of a warp, in the layout of mma accumulators.
#pragma once
#include "types.cuh"

// Two adjacent elements of a row in global memory.
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

// Four adjacent elements of a row.
template <class T>
__device__ __forceinline__ float4 load_quad(T const* p, bool there) {
  uint2 const quad = there ? *reinterpret_cast<uint2 const*>(p) : make_uint2(0, 0);
  return make_float4(unpack_lo<T>(quad.x), unpack_hi<T>(quad.x), unpack_lo<T>(quad.y), unpack_hi<T>(quad.y));
}
template <>
__device__ __forceinline__ float4 load_quad<float>(float const* p, bool there) {
  return there ? *reinterpret_cast<float4 const*>(p) : make_float4(0, 0, 0, 0);
}

// Element 2 half + c: token lane / 4 + 8 half, channel 2 (lane % 4) + c.
using Tile = float[4];

// `rows`: the tile's first token and channel; the first `tokens` tokens exist, the others are zeros.
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

// Prefix sums over the tokens, inclusive.
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
// Suffix sums over the tokens, inclusive.
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
// Shifts each token's elements to the next token; the first token gets zeros.
__device__ __forceinline__ void to_next_token(Tile& r, int lane) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float const low = __shfl_sync(0xffffffff, r[c], (lane + 28) % 32);
    float const high = __shfl_sync(0xffffffff, r[2 + c], (lane + 28) % 32);
    r[c] = lane < 4 ? 0 : low, r[2 + c] = lane < 4 ? low : high;
  }
}
// Inclusive suffix sums, and exclusive prefix sums, within groups of `tokens` tokens, 1 to 8.
__device__ __forceinline__ void sum_down_groups(Tile& r, int tokens, int lane) {
#pragma unroll 1
  for (int step = 1; step < tokens; step *= 2)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const other = __shfl_down_sync(0xffffffff, r[e], 4 * step);
      r[e] += (lane / 4 & tokens - 1) + step < tokens ? other : 0;
    }
}
__device__ __forceinline__ void sum_before_groups(Tile& r, int tokens, int lane) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float const before = __shfl_up_sync(0xffffffff, r[e], 4);
    r[e] = (lane / 4 & tokens - 1) > 0 ? before : 0;
  }
#pragma unroll 1
  for (int step = 1; step < tokens; step *= 2)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const other = __shfl_up_sync(0xffffffff, r[e], 4 * step);
      r[e] += (lane / 4 & tokens - 1) >= step ? other : 0;
    }
}
// The last token's elements, for the lane's two channels.
__device__ __forceinline__ float2 last_token(Tile const& r, int lane) {
  return make_float2(__shfl_sync(0xffffffff, r[2], 28 + lane % 4), __shfl_sync(0xffffffff, r[3], 28 + lane % 4));
}
// Sum over all tokens of channel lane / 4, in the lane with lane % 4 = lane / 8.
__device__ __forceinline__ float token_sum(Tile const& r, int lane) {
  float const even = r[0] + r[2], odd = r[1] + r[3];
  bool const is_odd = lane / 4 % 2;
  float sum = (is_odd ? odd : even) + __shfl_xor_sync(0xffffffff, is_odd ? even : odd, 4);
#pragma unroll
  for (int lanes = 8; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  return sum;
}

// The sum over the lanes that hold a row of tokens.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}
