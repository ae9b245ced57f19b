// Operands of products in shared memory, as threads write them: swizzled, in panels of one span.
#pragma once
#include "swizzle.cuh"
#include "types.cuh"

// A tile of `rows` rows in panels of one span each; element (row, col) of the panelled matrix.
template <class T>
__device__ __forceinline__ T* element(unsigned char* tile, int rows, int row, int col, Swizzle swizzle) {
  int const span = swizzle_span(swizzle), width = span / 2;
  uint32_t const within = swizzled(uint32_t(row * span + col % width * 2), swizzle);
  return reinterpret_cast<T*>(tile + col / width * rows * span + within);
}

// The rows of an operand's panels: mn if it is K-major, else k, of which there are 64.
constexpr __device__ int rows_of(int mn, Major major) { return major == Major::kK ? mn : 64; }

// a [M][64] and b [64][N], by 128 threads.
template <class T, int M, int N, Swizzle SWIZZLE, Major A, Major B>
__device__ __forceinline__ void write_operands(unsigned char* tile_a, unsigned char* tile_b, T const* a, T const* b) {
  for (int i = threadIdx.x; i < M * 64; i += 128) {
    int const m = i / 64, k = i % 64;
    *(A == Major::kK ? element<T>(tile_a, M, m, k, SWIZZLE) : element<T>(tile_a, 64, k, m, SWIZZLE)) = a[i];
  }
  for (int i = threadIdx.x; i < 64 * N; i += 128) {
    int const k = i / N, n = i % N;
    *(B == Major::kK ? element<T>(tile_b, N, n, k, SWIZZLE) : element<T>(tile_b, 64, k, n, SWIZZLE)) = b[i];
  }
}
