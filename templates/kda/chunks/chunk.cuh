// The tokens of a chunk in global memory.
#pragma once
#include "types.cuh"

// Two adjacent elements of a row, in memory layout.
template <class T>
struct Pair {
  uint32_t bits;
  __device__ __forceinline__ float lo() const { return unpack_lo<T>(bits); }
  __device__ __forceinline__ float hi() const { return unpack_hi<T>(bits); }
};
template <>
struct Pair<float> {
  float2 both;
  __device__ __forceinline__ float lo() const { return both.x; }
  __device__ __forceinline__ float hi() const { return both.y; }
};
template <class T>
__device__ __forceinline__ Pair<T> load_pair(T const* p, bool there) {
  return there ? *reinterpret_cast<Pair<T> const*>(p) : Pair<T>{};
}
template <class T>
__device__ __forceinline__ void store_pair(T* p, float lo, float hi) {
  *reinterpret_cast<uint32_t*>(p) = pack<T>(lo, hi);
}
template <>
__device__ __forceinline__ void store_pair<float>(float* p, float lo, float hi) {
  float2 const both = make_float2(lo, hi);
  *reinterpret_cast<float2*>(p) = both;
}

// Four adjacent elements of a row, in memory layout.
template <class T>
struct Quad {
  using Bits = uint2;
  Bits bits;
  __device__ __forceinline__ void unpack(float (&x)[4]) const {
    x[0] = unpack_lo<T>(bits.x), x[1] = unpack_hi<T>(bits.x);
    x[2] = unpack_lo<T>(bits.y), x[3] = unpack_hi<T>(bits.y);
  }
  static __device__ __forceinline__ Quad filled(float x) { return {make_uint2(pack<T>(x, x), pack<T>(x, x))}; }
};
template <>
struct Quad<float> {
  using Bits = float4;
  Bits all;
  __device__ __forceinline__ void unpack(float (&x)[4]) const {
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
  }
  static __device__ __forceinline__ Quad filled(float x) { return {make_float4(x, x, x, x)}; }
};
template <class T>
__device__ __forceinline__ Quad<T> load_quad(T const* p, bool there) {
  return there ? *reinterpret_cast<Quad<T> const*>(p) : Quad<T>{};
}
// A load from memory that no thread writes: it may be reordered with stores, and is known to be from global memory.
// kOnce: the data are read once, and evicted from caches first.
template <bool kOnce, class T>
__device__ __forceinline__ Quad<T> load_given_quad(T const* p, bool there) {
  auto const* bits = reinterpret_cast<typename Quad<T>::Bits const*>(p);
  return there ? Quad<T>{kOnce ? __ldcs(bits) : __ldg(bits)} : Quad<T>{};
}

// Eight adjacent elements of a row of 16-bit elements, in memory layout.
template <class T>
struct Octet {
  uint4 bits;
  __device__ __forceinline__ uint32_t pair(int i) const {
    return i / 2 ? (i % 2 ? bits.w : bits.z) : (i % 2 ? bits.y : bits.x);
  }
  __device__ __forceinline__ void unpack(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[2 * i] = unpack_lo<T>(pair(i)), x[2 * i + 1] = unpack_hi<T>(pair(i));
  }
};
// A load of an octet from memory that no thread writes, like load_given_quad.
template <class T>
__device__ __forceinline__ Octet<T> load_given_octet(T const* p, bool there) {
  return there ? Octet<T>{__ldg(reinterpret_cast<uint4 const*>(p))} : Octet<T>{};
}

// The rows of a chunk in global memory; the first `tokens` of them exist.
template <class T, class Gate, class Beta>
struct Chunk {
  T const *q, *k;
  Gate const* g;
  Beta const* beta;
  int64_t q_stride, k_stride, g_stride, beta_stride;
  int tokens;

  // The rows from token `t` on.
  __device__ __forceinline__ Chunk from(int64_t t) const {
    return {q + t * q_stride, k + t * k_stride, g + t * g_stride, beta + t * beta_stride,
            q_stride, k_stride, g_stride, beta_stride, tokens - int(t)};
  }
};
