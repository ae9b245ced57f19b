// N adjacent channels of one token, moved by one instruction.
#pragma once
#include "opaque.cuh"
#include "types.cuh"

template <int BYTES>
struct Word;
template <>
struct Word<16> {
  using Type = uint4;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<2> {
  using Type = uint16_t;
};

template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
  using Bits = typename Word<N * sizeof(T)>::Type;
  T at[N];
};

// Element i in fp32. The high element of a bf16 pair is its word with the low half cleared, and needs no shift.
template <class T, int N>
__device__ __forceinline__ float element(Vector<T, N> const& vector, int i) {
  return to_float(vector.at[i]);
}
template <int N>
__device__ __forceinline__ float element(Vector<bf16, N> const& vector, int i) {
  if constexpr (N > 1) {
    using Pairs = Vector<uint32_t, N / 2>;
    static_assert(sizeof(Pairs) == sizeof(vector), "and NVRTC before 12.9 knows the size of no other");
    uint32_t const pair = __builtin_bit_cast(Pairs, vector).at[i / 2];
    return __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
  } else {
    return to_float(vector.at[i]);
  }
}

// Streaming (.cs): data accessed once should not evict data that is reused.
template <class V, class T>
__device__ __forceinline__ V load_once(T const* p) {
  return __builtin_bit_cast(V, __ldcs(reinterpret_cast<typename V::Bits const*>(p)));
}
template <class V, class T>
__device__ __forceinline__ void store_once(T* p, V value) {
  __stcs(reinterpret_cast<typename V::Bits*>(p), __builtin_bit_cast(typename V::Bits, value));
}

// Values computed from a vector are not kept for later.
template <class V>
__device__ __forceinline__ void forget(V& vector) {
  if constexpr (sizeof(V) >= 4) {
    using Words = Vector<uint32_t, sizeof(V) / 4>;
    Words words = __builtin_bit_cast(Words, vector);
#pragma unroll
    for (int i = 0; i < sizeof(V) / 4; ++i) forget(words.at[i]);
    vector = __builtin_bit_cast(V, words);
  }
}

// N floats from or to shared memory, 16 bytes at a time if there are as many.
template <int N>
__device__ __forceinline__ void load_floats(float (&r)[N], float const* p) {
  using Part = Vector<float, N < 4 ? N : 4>;
#pragma unroll
  for (int i = 0; i < N; i += sizeof(Part) / 4) {
    Part const part = *reinterpret_cast<Part const*>(p + i);
#pragma unroll
    for (int j = 0; j < sizeof(Part) / 4; ++j) r[i + j] = part.at[j];
  }
}
template <int N>
__device__ __forceinline__ void store_floats(float* p, float const (&r)[N]) {
  using Part = Vector<float, N < 4 ? N : 4>;
#pragma unroll
  for (int i = 0; i < N; i += sizeof(Part) / 4) {
    Part part;
#pragma unroll
    for (int j = 0; j < sizeof(Part) / 4; ++j) part.at[j] = r[i + j];
    *reinterpret_cast<Part*>(p + i) = part;
  }
}
