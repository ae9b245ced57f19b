// Built-ins of CUDA C++ that need no include: keywords, vector types, indices, intrinsics, warp functions.
#pragma once
// Only the C library's header: with <cmath>, a small kernel takes 1.5 times as long to compile.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#include <cstdint>
#include <type_traits>

#include "runtime_api.h"

#define __global__ __attribute__((flatten))  // -fsanitize=thread does not see accesses to arguments passed by value
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...)  // the emulator uses Launch.cluster instead
#define __align__(n) alignas(n)
#define __constant__ EMULATOR_API  // a launch may write it

struct alignas(8) float2 { float x, y; };
struct float3 { float x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct int3 { int x, y, z; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
using uint3 = emulator::Index;
using dim3 = emulator::Index;
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(4) short2 { short x, y; };
struct alignas(4) ushort2 { unsigned short x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block_dim)
#define gridDim (emulator::grid_dim)
constexpr int warpSize = 32;

// ---- synchronization and memory order

__forceinline__ void __syncthreads(emulator::Here site = {}) { emulator::barrier_sync(0, 0, site); }
__forceinline__ void __syncwarp(unsigned mask = ~0u, emulator::Here site = {}) { emulator::syncwarp(mask, site); }
__forceinline__ void __threadfence() { emulator::threadfence(); }
__forceinline__ void __threadfence_block() {}
__forceinline__ void __nanosleep(unsigned) { emulator::backoff(emulator::Site()); }
__forceinline__ unsigned __activemask() { return emulator::active_mask(); }
[[noreturn]] __forceinline__ void __trap(emulator::Here site = {}) { emulator::trap("__trap() was called", site); }

// ---- shuffles, votes, reductions

namespace emulator {
template <class T>
__forceinline__ T shuffle_value(unsigned mask, T value, int source, int width, Shuffle mode, Site site) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mask, bits, source, width, mode, site);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace emulator

template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32, emulator::Here site = {}) {
  return emulator::shuffle_value(mask, value, lane, width, emulator::Shuffle::index, site);
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, emulator::Here site = {}) {
  return emulator::shuffle_value(mask, value, int(delta), width, emulator::Shuffle::up, site);
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, emulator::Here site = {}) {
  return emulator::shuffle_value(mask, value, int(delta), width, emulator::Shuffle::down, site);
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, emulator::Here site = {}) {
  return emulator::shuffle_value(mask, value, lanes, width, emulator::Shuffle::exclusive_or, site);
}

__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate, emulator::Here site = {}) {
  return emulator::reduce(mask, predicate != 0, emulator::Reduction::ballot, site);
}
__forceinline__ int __any_sync(unsigned mask, int predicate, emulator::Here site = {}) {
  return int(emulator::reduce(mask, predicate != 0, emulator::Reduction::bit_or, site));
}
__forceinline__ int __all_sync(unsigned mask, int predicate, emulator::Here site = {}) {
  return int(emulator::reduce(mask, predicate != 0, emulator::Reduction::bit_and, site));
}
__forceinline__ unsigned __reduce_add_sync(unsigned mask, unsigned value, emulator::Here site = {}) {
  return emulator::reduce(mask, value, emulator::Reduction::add, site);
}
__forceinline__ int __reduce_add_sync(unsigned mask, int value, emulator::Here site = {}) {
  return int(emulator::reduce(mask, unsigned(value), emulator::Reduction::add, site));
}
__forceinline__ unsigned __reduce_min_sync(unsigned mask, unsigned value, emulator::Here site = {}) {
  return emulator::reduce(mask, value, emulator::Reduction::minimum, site);
}
__forceinline__ int __reduce_min_sync(unsigned mask, int value, emulator::Here site = {}) {
  return int(emulator::reduce(mask, unsigned(value), emulator::Reduction::signed_minimum, site));
}
__forceinline__ unsigned __reduce_max_sync(unsigned mask, unsigned value, emulator::Here site = {}) {
  return emulator::reduce(mask, value, emulator::Reduction::maximum, site);
}
__forceinline__ int __reduce_max_sync(unsigned mask, int value, emulator::Here site = {}) {
  return int(emulator::reduce(mask, unsigned(value), emulator::Reduction::signed_maximum, site));
}
__forceinline__ unsigned __reduce_and_sync(unsigned mask, unsigned value, emulator::Here site = {}) {
  return emulator::reduce(mask, value, emulator::Reduction::bit_and, site);
}
__forceinline__ unsigned __reduce_or_sync(unsigned mask, unsigned value, emulator::Here site = {}) {
  return emulator::reduce(mask, value, emulator::Reduction::bit_or, site);
}
__forceinline__ unsigned __reduce_xor_sync(unsigned mask, unsigned value, emulator::Here site = {}) {
  return emulator::reduce(mask, value, emulator::Reduction::bit_xor, site);
}

// ---- bits

__forceinline__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
__forceinline__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__forceinline__ float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
__forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__forceinline__ int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
__forceinline__ unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
__forceinline__ int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
__forceinline__ unsigned __byte_perm(unsigned lo, unsigned hi, unsigned selector) {
  uint64_t const bytes = lo | uint64_t(hi) << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) result |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}

// ---- arithmetic. glibc declares functions such as __expf, so those are macros.

#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)
__forceinline__ float rsqrtf(float x) { return 1.0f / sqrtf(x); }
__forceinline__ float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
__forceinline__ float __frcp_rn(float x) { return 1.0f / x; }
__forceinline__ float __fsqrt_rn(float x) { return sqrtf(x); }
__forceinline__ float __fdividef(float a, float b) { return a / b; }
__forceinline__ float __fdiv_rn(float a, float b) { return a / b; }
__forceinline__ float __fadd_rn(float a, float b) { return a + b; }
__forceinline__ float __fsub_rn(float a, float b) { return a - b; }
__forceinline__ float __fmul_rn(float a, float b) { return a * b; }
__forceinline__ float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

// The minimum or maximum of a number and a NaN is the number, and -0 is less than +0: C leaves both to the library.
namespace emulator {
template <class T>
__forceinline__ T lesser(T a, T b) {
  return a == b ? (__builtin_signbit(a) ? a : b) : a < b || b != b ? a : b;
}
template <class T>
__forceinline__ T greater(T a, T b) {
  return a == b ? (__builtin_signbit(a) ? b : a) : a > b || b != b ? a : b;
}
}  // namespace emulator
#define fminf(x, y) emulator::lesser<float>(x, y)
#define fmaxf(x, y) emulator::greater<float>(x, y)
#define fmin(x, y) emulator::lesser<double>(x, y)
#define fmax(x, y) emulator::greater<double>(x, y)

__forceinline__ float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }  // NaN gives 0
// Values outside the range of int become the nearest int, and NaN becomes 0; undefined in C.
__forceinline__ int __float2int_rz(float x) {
  return x >= 0x1p31f ? 0x7fffffff : x < -0x1p31f ? -0x7fffffff - 1 : x == x ? int(x) : 0;
}
__forceinline__ int __float2int_rn(float x) { return __float2int_rz(nearbyintf(x)); }
__forceinline__ float __int2float_rn(int x) { return float(x); }

// CUDA accepts mixed types and computes in the common type.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
__forceinline__ std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return emulator::lesser<T>(a, b);
  else return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
__forceinline__ std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return emulator::greater<T>(a, b);
  else return T(a) > T(b) ? T(a) : T(b);
}

template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
__forceinline__ auto abs(T x) {
  if constexpr (std::is_floating_point_v<T>) return T(fabs(x));
  else return x < 0 ? -x : +x;
}

// ---- memory

template <class T>
__forceinline__ T __ldg(T const* p) { return *p; }
template <class T>
__forceinline__ T __ldcs(T const* p) { return *p; }
template <class T>
__forceinline__ T __ldcg(T const* p) { return *p; }
template <class T>
__forceinline__ void __stcs(T* p, T value) { *p = value; }
template <class T>
__forceinline__ void __stcg(T* p, T value) { *p = value; }

// Relaxed read-modify-writes of shared or global memory; each returns the previous value.
namespace emulator {
template <class T, class F>
__attribute__((no_sanitize("thread"))) inline T modify(T* p, F next, Order order, Site site) {
  modify_begin(p, sizeof(T), order, site);
  T const old = *p, value = next(old);
  *p = value;
  modify_end(p, __builtin_memcmp(&value, &old, sizeof(T)) != 0, order, site);
  return old;
}
}  // namespace emulator

#define EMULATOR_ATOMIC(name, expression)                                                       \
  template <class T>                                                                            \
  __forceinline__ T name(T* p, std::common_type_t<T> value, emulator::Here site = {}) {         \
    return emulator::modify(p, [=](T old) -> T { return expression; }, emulator::Order::relaxed, site); \
  }
EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicExch, (void(old), value))
EMULATOR_ATOMIC(atomicMin, old < value ? old : value)
EMULATOR_ATOMIC(atomicMax, old > value ? old : value)
EMULATOR_ATOMIC(atomicAnd, old & value)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : T(old - 1))
#undef EMULATOR_ATOMIC
template <class T>
__forceinline__ T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> value,
                            emulator::Here site = {}) {
  return emulator::modify(p, [=](T old) -> T { return old == expected ? value : old; }, emulator::Order::relaxed, site);
}
