// O and lse of the 16 kM rows of a warp, from registers to global memory; O by way of shared memory, in whole chunks.
#pragma once
#include "flash_attention/rows.cuh"
#include "flash_attention/softmax.cuh"

// Where a warp's rows lie in its block, and which of the kParts warps that share them this one is.
struct WarpRows {
  int first, part, lane;
};

// O = accumulated / sum, rounded, into the warp's rows in shared memory.
template <class T, class Layout, int kParts, int kM, int kN>
__device__ __forceinline__ void normalize(unsigned char* s_o, float const (&r_o)[kM][kN][4], RowState<kM> const& state,
                                          WarpRows at) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    float const sum = state.sum[i / 2][i % 2], inverse = sum > 0 ? rcp_approx(sum) : 0;
    int const row = at.first + i * 8 + at.lane / 4;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float const* pair = &r_o[i / 2][n][i % 2 * 2];
      int const chunk = (n / 2 * kParts + at.part) * 2 + n % 2;
      uint32_t const offset = Layout::offset(row, chunk) + at.lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(s_o + offset) = pack<T>(pair[0] * inverse, pair[1] * inverse);
    }
  }
}

// The warp's rows of O from shared memory to global, whole chunks to neighbouring lanes; `rows` of the block exist.
template <class T, class Layout, int kParts, int kRows>
__device__ __forceinline__ void store_o(T* g_o, int64_t stride, unsigned char const* s_o, int rows, WarpRows at) {
  for (int i = 32 * at.part + at.lane; i < kRows * Layout::kChunks; i += 32 * kParts) {
    int const row = at.first + i / Layout::kChunks, chunk = i % Layout::kChunks;
    if (row < rows)
      *reinterpret_cast<uint4*>(g_o + row * stride + chunk * 8) =
          *reinterpret_cast<uint4 const*>(s_o + Layout::offset(row, chunk));
  }
}

template <int kM>
__device__ __forceinline__ void store_lse(float* g_lse, RowState<kM> const& state, float scale, int rows, WarpRows at) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    int const row = at.first + i * 8 + at.lane / 4;
    float const max = exponent_shift(state.max[i / 2][i % 2], scale);
    if (at.part == 0 && at.lane % 4 == 0 && row < rows)
      g_lse[row] = (max + log2_approx(state.sum[i / 2][i % 2])) * kLn2;
  }
}
