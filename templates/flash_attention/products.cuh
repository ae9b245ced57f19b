// The two products of an attention tile, S = Q Kᵀ and O += P V, for the 16 kM rows of one warp.
#pragma once
#include "flash_attention/rows.cuh"
#include "ldmatrix.cuh"
#include "mma.cuh"
#include "opaque.cuh"

// This lane's ldmatrix offset in 16 rows of 2 chunks, for operand A (Q, P) and for operand B transposed (V).
template <class Layout>
__device__ __forceinline__ uint32_t rows_first(int lane, int chunk = 0) {
  return Layout::offset(lane % 16, chunk + lane / 16);
}
// This lane's ldmatrix offset for operand B (K): both chunks of a row are loaded into one pair of registers.
template <class Layout>
__device__ __forceinline__ uint32_t chunks_first(int lane) {
  return Layout::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// These offsets, computed once instead of again for every tile.
template <class Layout, class LayoutV = Layout>
struct LaneOffsets {
  uint32_t k, k_tail;  // offset in K, and in its last chunk if D is an odd multiple of 8
  uint32_t v;          // offset in V, from `chunk` on

  __device__ __forceinline__ explicit LaneOffsets(int lane, int chunk = 0)
      : k(chunks_first<Layout>(lane)),
        k_tail(Layout::offset(lane % 16, Layout::kChunks - 1)),
        v(rows_first<LayoutV>(lane, chunk)) {
    forget(k);
    if (Layout::kChunks % 2) forget(k_tail);
    forget(v);
  }
};

template <int kM, int kN>
__device__ __forceinline__ void clear(float (&r)[kM][kN][4]) {
#pragma unroll
  for (int i = 0; i < kM * kN * 4; ++i) r[i / (kN * 4)][i / 4 % kN][i % 4] = 0;
}

// Q of a warp as operands A: [16 kM, D].
template <int kM, int D>
struct Query {
  uint32_t k16[D < 16 ? 1 : D / 16][kM][4];
  uint32_t k8[kM][2];  // the last 8 columns if D is an odd multiple of 8
};

// Reads 16 columns, or the tail of 8; `q` is this lane's address from rows_first.
template <class Layout, int kM, int D>
__device__ __forceinline__ void load_query_step(Query<kM, D>& r_q, uint32_t q, int step) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    uint32_t const address = Layout::advance(q, 2 * step) + m * 16 * Layout::kRowBytes;
    if (step < D / 16)
      ldmatrix<4>(r_q.k16[step][m], address);
    else
      ldmatrix<2>(r_q.k8[m], address);
  }
}

template <class Layout, int kM, int D>
__device__ __forceinline__ void load_query(Query<kM, D>& r_q, uint32_t q) {
#pragma unroll
  for (int step = 0; step < ceil_div(D, 16); ++step) load_query_step<Layout>(r_q, q, step);
}

// r_s += Q Kᵀ over 16 columns; `k` is this lane's address from chunks_first, at those columns.
template <class T, class Layout, int kM, int kN>
__device__ __forceinline__ void multiply_k16(float (&r_s)[kM][kN][4], uint32_t const (&r_q)[kM][4], uint32_t k) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t r_k[4];
    ldmatrix<4>(r_k, k + n * 8 * Layout::kRowBytes);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      mma_m16n8k16<T>(r_s[m][n], r_q[m], {r_k[0], r_k[1]});
      mma_m16n8k16<T>(r_s[m][n + 1], r_q[m], {r_k[2], r_k[3]});
    }
  }
}
// r_s += Q Kᵀ over 8 columns; `k` from rows_first.
template <class T, class Layout, int kM, int kN>
__device__ __forceinline__ void multiply_k8(float (&r_s)[kM][kN][4], uint32_t const (&r_q)[kM][2], uint32_t k) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t r_k[2];
    ldmatrix<2>(r_k, k + n * 8 * Layout::kRowBytes);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      mma_m16n8k8<T>(r_s[m][n], r_q[m], {r_k[0]});
      mma_m16n8k8<T>(r_s[m][n + 1], r_q[m], {r_k[1]});
    }
  }
}

// r_s = Q Kᵀ: [16 kM, 8 kN]. `q`: this lane's address of Q from rows_first; `s_k`: the start of the warp's keys.
// Without kQueryInRegisters, r_q is only temporary storage for Q.
template <class T, class Layout, bool kQueryInRegisters, int kM, int kN, int D, class LayoutV>
__device__ __forceinline__ void scores(float (&r_s)[kM][kN][4], Query<kM, D>& r_q, uint32_t q, uint32_t s_k,
                                       LaneOffsets<Layout, LayoutV> const& lane) {
  uint32_t const k = s_k + lane.k;
  clear(r_s);
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    if constexpr (!kQueryInRegisters) load_query_step<Layout>(r_q, q, step);
    multiply_k16<T, Layout>(r_s, r_q.k16[step], Layout::advance(k, 2 * step));
  }
  if constexpr (D % 16 != 0) {
    if constexpr (!kQueryInRegisters) load_query_step<Layout>(r_q, q, D / 16);
    multiply_k8<T, Layout>(r_s, r_q.k8, s_k + lane.k_tail);
  }
}

// r_o += P V over 16 keys. `v`: this lane's address from rows_first in the first tile of keys; `rows`: byte offset of
// these keys. The warp computes every kParts-th pair of 8-wide column tiles of O, from the one at `v` on.
template <class T, class Layout, int kParts, int kM, int kN>
__device__ __forceinline__ void accumulate(float (&r_o)[kM][kN][4], uint32_t const (&r_p)[kM][4], uint32_t v, int rows) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t const address = Layout::advance(v, n * kParts) + rows;
    uint32_t r_v[2][2];
    if (n + 1 < kN)
      ldmatrix_trans<4>(reinterpret_cast<uint32_t(&)[4]>(r_v), address);
    else
      ldmatrix_trans<2>(r_v[0], address);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      mma_m16n8k16<T>(r_o[m][n], r_p[m], r_v[0]);
      if (n + 1 < kN) mma_m16n8k16<T>(r_o[m][n + 1], r_p[m], r_v[1]);
    }
  }
}
