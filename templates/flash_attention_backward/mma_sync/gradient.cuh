// Computes gradients from scores and products, for the 16 kM rows of a warp: rows are keys for dK and dV, queries for
// dQ.
#pragma once
#include "flash_attention/products.cuh"
#include "flash_attention_backward/slope.cuh"
#include "math.cuh"

// Row constants of P and dS for a query: P = 2^(score - shift), and dS uses the product minus delta.
struct alignas(8) RowValues {
  float shift, delta;
};
struct alignas(16) TwoRows {
  RowValues at[2];
};

// This lane's offset for operands A of the warp's own rows, from row `row` of a tile on; computed once for all streamed
// tiles.
template <class Layout>
__device__ __forceinline__ uint32_t own_offset(int row, int lane) {
  uint32_t found = row * Layout::kRowBytes + rows_first<Layout>(lane);
  forget(found);
  return found;
}
// The lane's offsets in tiles of another width; the known offsets if the width is the same.
template <class Other, class Layout>
__device__ __forceinline__ LaneOffsets<Other> offsets_besides(LaneOffsets<Layout> const& known, int lane) {
  if constexpr (Other::kDim == Layout::kDim)
    return known;
  else
    return LaneOffsets<Other>(lane);
}

// Temporary storage of own rows as operands A: those of D columns for scores, then those of DV for products.
template <int kM, int D, int DV>
union Passing {
  Query<kM, D> first;
  Query<kM, DV> second;
};

// P and dS, rounded to T as operands A of 16 columns each, from scores S (as returned by `cap`; -inf where masked;
// `scale`: the result of scale_of) and the products dO Vᵀ. `values(m, h, n)`: the row values for row 16 m + 8 h + lane
// / 4 of the warp's tile at its columns 8 n + lane % 4 · 2 and the next.
template <class T, int kM, int kN, class Scale, class Values>
__device__ __forceinline__ void differentiate(uint32_t (&r_p)[kN / 2][kM][4], uint32_t (&r_ds)[kN / 2][kM][4],
                                              float const (&r_s)[kM][kN][4], float const (&r_dp)[kM][kN][4],
                                              Scale const& scale, Values const& values) {
  float const factor = factor_of(scale);
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      int const m = i / 2, h = i % 2, e = 2 * h;
      TwoRows const two = values(m, h, n);
      float const p0 = exp2_approx(fmaf(r_s[m][n][e], factor, -two.at[0].shift));
      float const p1 = exp2_approx(fmaf(r_s[m][n][e + 1], factor, -two.at[1].shift));
      float const ds0 = p0 * (r_dp[m][n][e] - two.at[0].delta) * slope(r_s[m][n][e], scale);
      float const ds1 = p1 * (r_dp[m][n][e + 1] - two.at[1].delta) * slope(r_s[m][n][e + 1], scale);
      r_p[n / 2][m][n % 2 * 2 + h] = pack<T>(p0, p1);
      r_ds[n / 2][m][n % 2 * 2 + h] = pack<T>(ds0, ds1);
    }
}

// r_sum += A B over the 16 kSteps rows of B, a tile in shared memory; A is the output of `differentiate`. The warp
// computes kN column tiles of 8 from `chunk0` on, up to D; kSlices > 1: chunk0 is nonzero in some blocks.
template <class T, class Layout, int kSlices, int kM, int kN, int kSteps>
__device__ __forceinline__ void accumulate_steps(float (&r_sum)[kM][kN][4], uint32_t const (&r_a)[kSteps][kM][4],
                                                 uint32_t s_b, int chunk0, LaneOffsets<Layout> const& offsets,
                                                 int lane) {
  if constexpr (kSlices == 1) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      accumulate<T, Layout, 1>(r_sum, r_a[step], s_b + offsets.v, step * 16 * Layout::kRowBytes);
  } else {
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      if (chunk0 + n >= Layout::kChunks) break;
      bool const both = chunk0 + n + 1 < Layout::kChunks;
      uint32_t const b = s_b + Layout::offset(lane % 16, chunk0 + n + (both ? lane / 16 : 0));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t r_b[4];
        ldmatrix_trans<4>(r_b, b + step * 16 * Layout::kRowBytes);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16<T>(r_sum[m][n], r_a[step][m], {r_b[0], r_b[1]});
          if (both) mma_m16n8k16<T>(r_sum[m][n + 1], r_a[step][m], {r_b[2], r_b[3]});
        }
      }
    }
  }
}

// Stores factor · r_sum, rounded, to the warp's rows in global memory, of which `rows` exist, through `s_rows`, which
// no other warp still reads. Column tiles as above.
template <class T, class Layout, int kM, int kN>
__device__ __forceinline__ void store_gradient(T* g_rows, int64_t stride, unsigned char* s_rows,
                                               float const (&r_sum)[kM][kN][4], float factor, int rows, int chunk0,
                                               int lane) {
  int const chunks = min(kN, Layout::kChunks - chunk0);
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    if (n >= chunks) break;
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      float const* pair = &r_sum[i / 2][n][i % 2 * 2];
      uint32_t const offset = Layout::offset(i * 8 + lane / 4, chunk0 + n) + lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(s_rows + offset) = pack<T>(pair[0] * factor, pair[1] * factor);
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * kM * chunks; i += 32) {
    int const row = i / chunks, chunk = chunk0 + i % chunks;
    if (row < rows)
      *reinterpret_cast<uint4*>(g_rows + row * stride + chunk * 8) =
          *reinterpret_cast<uint4 const*>(s_rows + Layout::offset(row, chunk));
  }
}
