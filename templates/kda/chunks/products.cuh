// Products of tiles in shared memory on mma.sync, one warp each. Everything that depends on the precision of operands
// is in a class of static members, Bf16Operands or Tf32Operands; an mma operand has the same size and layout in bytes
// in both.
#pragma once
#include "flash_attention/rows.cuh"
#include "ldmatrix.cuh"
#include "mma.cuh"

// Rows of a tile [C, K] of an image that mma.sync reads; tiles are contiguous.
template <int K, int C, int kElement>
struct TileRows : Rows<K * kElement / 2, true> {
  static constexpr int kTileStep = C * K * kElement;  // distance between tiles
};

// This lane's ldmatrix offset in 16 rows of 2 chunks, for operand A, and for operand B if a row is a step of k.
template <class Layout>
__device__ __forceinline__ uint32_t rows_by_lane(int lane) {
  return Layout::offset(lane % 16, lane / 16);
}
// This lane's ldmatrix offset for operand B if a row is a column of the product, and for operand A if a row is a step
// of k.
template <class Layout>
__device__ __forceinline__ uint32_t chunks_by_lane(int lane) {
  return Layout::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

template <int kM, int kN>
__device__ __forceinline__ void clear(float (&r)[kM][kN][4]) {
#pragma unroll
  for (int i = 0; i < kM * kN * 4; ++i) r[i / (kN * 4)][i / 4 % kN][i % 4] = 0;
}

// r += A Bᵀ over one step of the columns of A [16 kM, ·] and of the tile B [8 kN, ·]; `b`: this lane's address of B
// from Operands::columns_by_lane, at those columns.
template <class Layout, class Operands, int kM, int kN>
__device__ __forceinline__ void multiply_rows(float (&r)[kM][kN][4], typename Operands::A const (&r_a)[kM],
                                              uint32_t b) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    typename Operands::B r_b;
    ldmatrix<4>(r_b, b + n * 8 * Layout::kRowBytes);
#pragma unroll
    for (int m = 0; m < kM; ++m) Operands::multiply(r[m][n], r[m][n + 1], r_a[m], r_b);
  }
}
