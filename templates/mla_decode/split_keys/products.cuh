// The products of a tile, S = Q Kᵀ and O += P V, where V is the first columns of K: one tile in shared memory, read
// along its rows and then along its columns.
#pragma once
#include "flash_attention/products.cuh"
#include "mla_decode/attend.cuh"

// This lane's addresses for ldmatrix, which are the same for all tiles; K and V are relative to the start of a tile.
template <class Tile>
struct Addresses {
  using Layout = typename Tile::Layout;

  uint32_t q, k, v, p;

  __device__ __forceinline__ Addresses(uint32_t s_block, BlockCoord const& at)
      : q(s_block + at.warp_row * Layout::kRowBytes + rows_first<Layout>(at.lane)),
        k(at.part * Tile::kKeys * Layout::kRowBytes + keys_first(at.lane)),
        v(rows_first<Layout>(at.lane, 2 * at.part)),
        p(s_block + Tile::kP + at.warp_row * Tile::LayoutP::kRowBytes + rows_first<typename Tile::LayoutP>(at.lane)) {
    forget(q);
    forget(k);
    forget(v);
  }
  // Operand B of 16 keys and 16 columns, or of 8 keys and 32 columns.
  static __device__ __forceinline__ uint32_t keys_first(int lane) {
    return Tile::kKeys == 8 ? Layout::offset(lane % 8, lane / 8) : chunks_first<Layout>(lane);
  }
};

// Columns 16 step and on of the warp's rows of Q, as operands A of 16 columns.
template <class Tile>
__device__ __forceinline__ void load_q(uint32_t (&r_q)[Tile::kM][4], uint32_t q, int step) {
#pragma unroll
  for (int m = 0; m < Tile::kM; ++m)
    ldmatrix<4>(r_q[m], Tile::Layout::advance(q, 2 * step) + m * 16 * Tile::Layout::kRowBytes);
}

// r_s += Q Kᵀ for 8 keys; sums of even and odd steps are independent.
template <class Tile>
__device__ __forceinline__ void score_8(float (&r_s)[Tile::kM][1][4], uint32_t q, uint32_t k) {
  using T = typename Tile::T;
  constexpr int kSteps = Tile::D / 16;
  float r_odd[Tile::kM][1][4];
  uint32_t r_q[Tile::kM][4], r_k[4];
  clear(r_odd);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t const keys = Tile::Layout::advance(k, 2 * step);
    if (step % 2 == 0 && step + 1 < kSteps) ldmatrix<4>(r_k, keys);
    if (step % 2 == 0 && step + 1 == kSteps) ldmatrix<2>(reinterpret_cast<uint32_t(&)[2]>(r_k), keys);
    load_q<Tile>(r_q, q, step);
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m)
      mma_m16n8k16<T>(step % 2 ? r_odd[m][0] : r_s[m][0], r_q[m], {r_k[step % 2 * 2], r_k[step % 2 * 2 + 1]});
  }
#pragma unroll
  for (int i = 0; i < 4 * Tile::kM; ++i) r_s[i / 4][0][i % 4] += r_odd[i / 4][0][i % 4];
}

// r_s = Q Kᵀ for the warp's rows and its part of the keys of the tile at s_rows.
template <class Tile>
__device__ __forceinline__ void score(float (&r_s)[Tile::kM][Tile::kKeys / 8][4], Addresses<Tile> const& lane,
                                      uint32_t s_rows) {
  clear(r_s);
  if constexpr (Tile::kKeys == 8) {
    score_8<Tile>(r_s, lane.q, s_rows + lane.k);
  } else {
#pragma unroll
    for (int step = 0; step < Tile::D / 16; ++step) {
      uint32_t r_q[Tile::kM][4];
      load_q<Tile>(r_q, lane.q, step);
      multiply_k16<typename Tile::T, typename Tile::Layout>(r_s, r_q, Tile::Layout::advance(s_rows + lane.k, 2 * step));
    }
  }
}

// r_o += P V for all keys of the tile at s_rows and the warp's part of O's columns.
template <class Tile>
__device__ __forceinline__ void accumulate_values(float (&r_o)[Tile::kM][Tile::kN][4], Addresses<Tile> const& lane,
                                                  uint32_t s_rows) {
  using Layout = typename Tile::Layout;
  using LayoutP = typename Tile::LayoutP;
#pragma unroll
  for (int step = 0; step < Tile::BN / 16; ++step) {
    uint32_t r_p[Tile::kM][4];
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m)
      ldmatrix<4>(r_p[m], LayoutP::advance(lane.p, 2 * step) + m * 16 * LayoutP::kRowBytes);
    accumulate<typename Tile::T, Layout, Tile::kParts>(r_o, r_p, s_rows + lane.v, step * 16 * Layout::kRowBytes);
  }
}

// r_o = the sum of P V over the tiles from the ring, with maxima and sums in `state`; both are initially cleared.
// `scale`: scale of scores, in base 2.
struct AttendOnMma {
  template <class Tile>
  static __device__ __forceinline__ void run(float (&r_o)[Tile::kM][Tile::kN][4], RowState<Tile::kM>& state,
                                             unsigned char* smem, Visible<Tile> const& visible, float scale,
                                             LatentRing<Tile>& ring, BlockCoord const& at) {
    Addresses<Tile> const lane(shared_address(smem), at);
    for (int tile = 0; tile < ring.tiles; ++tile) {
      float r_s[Tile::kM][Tile::kKeys / 8][4], peak[Tile::kM][2];
      uint32_t r_p[ceil_div(Tile::kKeys, 16)][Tile::kM][4];
      uint32_t const s_rows = ring.acquire(tile);
      score<Tile>(r_s, lane, s_rows);
      visible.peaks(peak, r_s, smem, ring.key(tile), at);
      raise_max<true>(state, r_o, peak, scale);
      exponentiate<typename Tile::T>(r_p, state, r_s, scale);
      share_p<Tile, Tile::kKeys>(smem, r_p, at);
      sync_parts<Tile>(at);
      accumulate_values<Tile>(r_o, lane, s_rows);
    }
  }
};
