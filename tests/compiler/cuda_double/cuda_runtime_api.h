// What a launcher takes of CUDA's runtime, for a machine without it: launches are printed, an argument a word.
#pragma once
#include <cstddef>
#include <cstdio>
#include <cstring>

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidValue = 1;
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 8;

struct dim3 {
  long long x, y, z;
  dim3(long long x, long long y, long long z) : x(x), y(y), z(z) {}
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaFuncSetAttribute(char const* kernel, int, int bytes) {
  std::printf("grant %s %d\n", kernel, bytes);
  return cudaSuccess;
}

inline void word(void const* p) { std::printf(" %llu", static_cast<unsigned long long>(reinterpret_cast<size_t>(p))); }
inline void word(long long n) { std::printf(" %lld", n); }
inline void word(int n) { std::printf(" %d", n); }
inline void word(float x) { std::printf(" %.9g", x); }
template <class Map>
inline auto word(Map const& map) -> decltype(map.opaque, void()) {
  std::printf(" map:%s", map.opaque);
}

template <class... Arguments>
void print_launch(char const* kernel, dim3 grid, long long threads, long long shared, cudaStream_t,
                  Arguments... arguments) {
  std::printf("launch %s %lld %lld %lld %lld %lld", kernel, grid.x, grid.y, grid.z, threads, shared);
  (word(arguments), ...);
  std::printf("\n");
}
