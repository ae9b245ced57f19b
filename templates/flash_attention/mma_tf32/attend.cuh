// The complete computation between Q in global memory and O in registers, with 32-bit operands.
#pragma once
#include "flash_attention/attend.cuh"
#include "flash_attention/mma_tf32/products.cuh"
#include "flash_attention/mma_tf32/rounding.cuh"
#include "register.cuh"

// Loads Q to shared memory, and to registers if it is kept there, while the ring starts to fill; rounded if elements
// have one term. Q in shared memory is visible only after the ring's first barrier.
template <class Tile, class Elements, bool kQueryInRegisters, class QueryRows, class Ring, int D>
__device__ __forceinline__ void load_q_tf32(Query<Tile::kM, D>& r_q, unsigned char* smem, uint32_t query,
                                            QueryRows const& rows, Ring& ring) {
  using Layout = typename Tile::Layout;
  rows.load(shared_address(smem) + Tile::kQuery);
  cp_async_commit();
  if constexpr (!Tile::kQueryInRing) ring.fill();
  if constexpr (kQueryInRegisters || Elements::kTerms == 1) cp_async_wait<Tile::kQueryInRing ? 0 : Tile::kStages - 1>();
  if constexpr (Elements::kTerms == 1)
    round_rows(smem + Tile::kQuery, CopyShare<Layout, Tile::BM, Tile::kThreads>(threadIdx.x));
  if constexpr (kQueryInRegisters) {
    ring.source.sync();
    load_query<Layout>(r_q, query);
  }
  if constexpr (Tile::kQueryInRing) {
    ring.source.sync();
    ring.fill();
  }
}

// Replaces S by P = 2^(scale · S - max), and adds it to the sums.
template <int kM, int kN>
__device__ __forceinline__ void exponentiate_in_place(float (&r_s)[kM][kN][4], RowState<kM>& state, float scale) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < 4 * kN; ++i) {
      float& p = r_s[m][i / 4][i % 4];
      p = exp2_approx(fmaf(p, scale, -state.max[m][i / 2 % 2]));
      state.sum[m][i / 2 % 2] += p;
    }
}

// Stores P of this warp's keys from registers to the tile shared by the warps of its rows, in the order of operand A.
// They read it after a barrier.
template <class Tile, int kN>
__device__ __forceinline__ void share_p_tf32(unsigned char* smem, float const (&r_p)[Tile::kM][kN][4], BlockCoord const& at) {
#pragma unroll
  for (int i = 0; i < 2 * Tile::kM; ++i)
#pragma unroll
    for (int c = 0; c < 2 * kN; ++c) {
      int const row = at.warp_row + i * 8 + at.lane / 4, chunk = at.part * 2 * kN + c;
      uint32_t const offset = Tile::LayoutP::offset(row, chunk) + at.lane % 4 * 4;
      *reinterpret_cast<float*>(smem + Tile::kP + offset) = r_p[i / 2][c / 2][i % 2 * 2 + c % 2];
    }
}

// Operand A of 8 keys: this warp's own scores, or P shared by the warps of its rows; `p`: this lane's address of that P
// from rows_first.
template <class Tile, class Elements>
__device__ __forceinline__ void load_p(OperandA<Elements::kTerms, Tile::kM>& r_a,
                                       float const (&r_p)[Tile::kM][Tile::kKeys / 8][4], uint32_t p, int step) {
#pragma unroll
  for (int m = 0; m < Tile::kM; ++m) {
    uint32_t bits[4];
    if constexpr (Tile::kParts == 1) {
      float const(&tile)[4] = r_p[m][step];
#pragma unroll
      for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(tile[i % 2 * 2 + i / 2]);
    } else {
      ldmatrix<4>(bits, Tile::LayoutP::advance(p, 2 * step) + m * 16 * Tile::LayoutP::kRowBytes);
    }
    split<Known::kInSum>(r_a, m, bits);
  }
}

// attend() of attend.cuh for 32-bit operands: keys are in KeyOrder, so mask.hide() treats a lane's second column as
// KeyOrder::kApart keys later.
template <class Tile, class Elements, bool kQueryInRegisters, bool kLazyRescale, class QueryRows, class Scale,
          class Ring, class Mask>
__device__ __forceinline__ void attend_tf32(float (&r_o)[Tile::kM][Tile::kN][4], RowState<Tile::kM>& state,
                                            unsigned char* smem, QueryRows const& rows, Scale const& scale, Ring& ring,
                                            Mask const& mask, BlockCoord const& at) {
  using Layout = typename Tile::Layout;
  using LayoutV = typename Tile::LayoutV;
  constexpr int kM = Tile::kM;
  // If O leaves few registers, loads of V must not be hoisted ahead of their step.
  constexpr bool kTight = Elements::kTerms == 2 && kM * Tile::kN > 24;
  uint32_t const s_tiles = shared_address(smem);
  uint32_t query = s_tiles + Tile::kQuery + at.warp_row * Layout::kRowBytes + rows_first<Layout>(at.lane);
  uint32_t lane_k = keys_in_order<Layout, LayoutV>(at.lane);
  forget(query);
  forget(lane_k);
  LaneOfV<LayoutV, Tile::kN> const lane_v(at.lane, at.part * Tile::kN * 8);
  uint32_t const p = s_tiles + Tile::kP + at.warp_row * Tile::LayoutP::kRowBytes +
                     rows_first<typename Tile::LayoutP>(at.lane);

  Query<kM, Layout::kDim> r_q;
  load_q_tf32<Tile, Elements, kQueryInRegisters>(r_q, smem, query, rows, ring);
  clear(r_o);
  reset(state);
  for (int tile = 0; tile < ring.source.walk.tiles; ++tile) {
    float r_p[kM][Tile::kKeys / 8][4], peak[kM][2];
    int const key = ring.source.walk.key(tile), mine = at.part * Tile::kKeys;
    bool const any = mask.span(key).any;
    uint32_t const s_k = ring.acquire(tile, false);
    if (any) {
      scores_tf32<Elements, Layout, kQueryInRegisters>(r_p, r_q, query, s_k + mine * Layout::kRowBytes + lane_k);
      float const factor = cap(r_p, scale);
      mask.hide(r_p, key, mine, KeyOrder<LayoutV>::first(at.lane % 4));
      row_max(peak, r_p);
      reduce_parts<Tile, false>(peak, smem, at);
      raise_max<kLazyRescale>(state, r_o, peak, factor);
      exponentiate_in_place(r_p, state, factor);
      if constexpr (Tile::kParts > 1) share_p_tf32<Tile>(smem, r_p, at);
    }
    unsigned char const* s_v = smem + (ring.acquire(tile, true) - s_tiles);
    if (any) {
#pragma unroll
      for (int step = 0; step < Tile::BN / 8; ++step) {
        if (kTight && step > 0) end_basic_block(tile);
        OperandA<Elements::kTerms, kM> r_a;
        load_p<Tile, Elements>(r_a, r_p, p, step);
        accumulate_tf32<Elements, LayoutV>(r_o, r_a, s_v + step * 8 * LayoutV::kRowBytes, lane_v);
      }
    }
  }
  cp_async_wait<0>();
  ring.source.sync();
}
