// The two products of an attention tile with 32-bit operands, for the 16 kM rows of one warp.
#pragma once
#include "flash_attention/mma_tf32/keys.cuh"
#include "flash_attention/mma_tf32/operands.cuh"
#include "flash_attention/products.cuh"

// Elements of K and V in shared memory, each of which is multiplied as kTerms tf32 terms. kOnArrival: they were rounded
// on arrival.
template <int kNumber, bool kOnArrival>
struct Elements {
  static_assert(kNumber == 1 || !kOnArrival, "what is rounded has no second term");
  static constexpr int kTerms = kNumber;
  static constexpr Known kKnown = kOnArrival ? Known::kRounded : Known::kNothing;
};

// r_s = Q Kᵀ: [16 kM, 8 kN]; keys in KeyOrder. `r_q`: steps of 8 elements, rounded if there is one term; without
// kQueryInRegisters it is only temporary storage for Q. `q`: this lane's address of Q from rows_first; `k`: of K from
// keys_in_order.
template <class Elements, class Layout, bool kQueryInRegisters, int kM, int kN, int D>
__device__ __forceinline__ void scores_tf32(float (&r_s)[kM][kN][4], Query<kM, D>& r_q, uint32_t q, uint32_t k) {
  constexpr int kTerms = Elements::kTerms, kTiles = 2 - kN % 2;
  clear(r_s);
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    if constexpr (!kQueryInRegisters) load_query_step<Layout>(r_q, q, step);
    OperandA<kTerms, kM> r_a;
#pragma unroll
    for (int m = 0; m < kM; ++m) split<Known::kRounded>(r_a, m, r_q.k16[step][m]);
#pragma unroll
    for (int n = 0; n < kN; n += kTiles) {
      uint32_t r_k[2 * kTiles];
      ldmatrix<2 * kTiles>(r_k, Layout::advance(k, 2 * step) + n * 8 * Layout::kRowBytes);
      OperandB<kTerms, kTiles> r_b;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) split<Elements::kKnown>(r_b, j, {r_k[2 * j], r_k[2 * j + 1]});
      multiply<kTerms, kTiles>(r_s, r_a, r_b, n);
    }
  }
}

// kTiles adjacent elements in shared memory.
template <int kTiles>
__device__ __forceinline__ void load_elements(uint32_t (&r)[kTiles], unsigned char const* p) {
  if constexpr (kTiles == 4) {
    uint4 const four = *reinterpret_cast<uint4 const*>(p);
    r[0] = four.x, r[1] = four.y, r[2] = four.z, r[3] = four.w;
  } else if constexpr (kTiles == 2) {
    uint2 const two = *reinterpret_cast<uint2 const*>(p);
    r[0] = two.x, r[1] = two.y;
  } else {
    r[0] = *reinterpret_cast<uint32_t const*>(p);
  }
}

// r_o += P V over 8 keys of V, starting at s_v.
template <class Elements, class LayoutV, int kM, int kN>
__device__ __forceinline__ void accumulate_tf32(float (&r_o)[kM][kN][4],
                                                OperandA<Elements::kTerms, kM> const& r_p, unsigned char const* s_v,
                                                LaneOfV<LayoutV, kN> const& lane) {
  ColumnGroups<kN>::each([&](auto tiles, int first) {
    constexpr int kTiles = decltype(tiles)::value;
    uint32_t r_v[2][kTiles];
    load_elements(r_v[0], s_v + lane.template at<kTiles>(0, first));
    load_elements(r_v[1], s_v + lane.template at<kTiles>(1, first));
    OperandB<Elements::kTerms, kTiles> r_b;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) split<Elements::kKnown>(r_b, j, {r_v[0][j], r_v[1][j]});
    multiply<Elements::kTerms, kTiles>(r_o, r_p, r_b, first);
  });
}
