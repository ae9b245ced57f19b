// The tokens of a chunk as they lie in global memory.
#pragma once
#include "types.cuh"

// Two neighbours of a row, as they lie in memory.
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

// The rows of a chunk in global memory, of which the first `tokens` exist.
template <class T, class Gate, class Beta>
struct Chunk {
  T const *q, *k;
  Gate const* g;
  Beta const* beta;
  int64_t q_stride, k_stride, g_stride, beta_stride;
  int tokens;

  // The same rows, from token `t` on.
  __device__ __forceinline__ Chunk from(int64_t t) const {
    return {q + t * q_stride, k + t * k_stride, g + t * g_stride, beta + t * beta_stride,
            q_stride, k_stride, g_stride, beta_stride, tokens - int(t)};
  }
};
