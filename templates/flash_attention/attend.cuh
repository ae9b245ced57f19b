// The complete computation between Q in global memory and O in registers, shared by attention kernels on mma.sync.
#pragma once
#include "flash_attention/ring.cuh"
#include "flash_attention/softcap.cuh"
#include "flash_attention/softmax.cuh"
#include "flash_attention/span.cuh"
#include "flash_attention/tile.cuh"

// A block's rows of Q in global memory; the first `count` of them exist.
template <class Tile>
struct BlockRows {
  typename Tile::T const* g_q;
  int64_t stride;
  int count;

  __device__ __forceinline__ void load(uint32_t s_query) const {
    load_rows<typename Tile::Layout, Tile::BM, Tile::kThreads>(s_query, g_q, stride, count);
  }
};

// Loads Q to shared memory, and to registers if it is kept there, while the ring starts to fill. `query`: this lane's
// address of Q from rows_first.
template <class Tile, bool kQueryInRegisters, class QueryRows, class Ring>
__device__ __forceinline__ void load_q(Query<Tile::kM, Tile::D>& r_q, uint32_t s_query, uint32_t query,
                                       QueryRows const& rows, Ring& ring) {
  rows.load(s_query);
  cp_async_commit();
  if constexpr (!Tile::kQueryInRing) ring.fill();
  if constexpr (kQueryInRegisters) {
    cp_async_wait<Tile::kQueryInRing ? 0 : Tile::kStages - 1>();
    ring.source.sync();
    load_query<typename Tile::Layout>(r_q, query);
  }
  if constexpr (Tile::kQueryInRing) {
    ring.source.sync();
    ring.fill();
  }
}

// r_o = the sum of P V over the tiles of keys from the ring, with maxima and sums in `state`; afterwards the threads
// that share the ring may reuse its memory. `scale`: the result of scale_of. QueryRows loads Q as BlockRows does. Mask
// defines which keys of a tile a warp attends:
//   kNarrow     keys of a narrow span; 0: there is none
//   span(key)   the Span of the tile that starts at `key`
//   hide(r_s, key, begin, column)   sets scores of keys that a row does not attend to -inf; r_s starts at the key
//                                   `begin` of the tile at `key`, the lane's scores `column` later
template <class Tile, bool kQueryInRegisters, bool kLazyRescale, class QueryRows, class Scale, class Ring, class Mask>
__device__ __forceinline__ void attend(float (&r_o)[Tile::kM][Tile::kN][4], RowState<Tile::kM>& state,
                                       unsigned char* smem, QueryRows const& rows, Scale const& scale, Ring& ring,
                                       Mask const& mask, BlockCoord const& at) {
  using T = typename Tile::T;
  using Layout = typename Tile::Layout;
  using LayoutV = typename Tile::LayoutV;
  using LayoutP = typename Tile::LayoutP;
  constexpr int kM = Tile::kM;
  uint32_t const s_tiles = shared_address(smem), s_query = s_tiles + Tile::kQuery;
  uint32_t query = s_query + at.warp_row * Layout::kRowBytes + rows_first<Layout>(at.lane);
  LaneOffsets<Layout, LayoutV> const lane(at.lane, 2 * at.part);
  forget(query);
  uint32_t const p = s_tiles + Tile::kP + at.warp_row * LayoutP::kRowBytes + rows_first<LayoutP>(at.lane);

  Query<kM, Tile::D> r_q;
  load_q<Tile, kQueryInRegisters>(r_q, s_query, query, rows, ring);
  clear(r_o);
  reset(state);
  for (int tile = 0; tile < ring.source.walk.tiles; ++tile) {
    uint32_t r_p[Tile::kKeys / 16][kM][4];
    int const key = ring.source.walk.key(tile);
    Span const span = mask.span(key);
    uint32_t const s_k = ring.acquire(tile, false);
    on_span<Mask::kNarrow, Tile::BN>(span, [&](auto keys, int first) {
      constexpr int kMine = decltype(keys)::value / Tile::kParts;
      int const mine = first + at.part * kMine;
      float r_s[kM][kMine / 8][4], peak[kM][2];
      scores<T, Layout, kQueryInRegisters>(r_s, r_q, query, s_k + mine * Layout::kRowBytes, lane);
      float const factor = cap(r_s, scale);
      mask.hide(r_s, key, mine, at.lane % 4 * 2);
      row_max(peak, r_s);
      reduce_parts<Tile, false>(peak, smem, at);
      raise_max<kLazyRescale>(state, r_o, peak, factor);
      exponentiate<T>(r_p, state, r_s, factor);
      if constexpr (Tile::kParts > 1) share_p<Tile, kMine>(smem, r_p, at);
    });
    uint32_t const s_v = ring.acquire(tile, true);
    on_span<Mask::kNarrow, Tile::BN>(span, [&](auto keys, int first) {
      accumulate_keys<Tile, decltype(keys)::value>(r_o, r_p, p, s_v + lane.v + first * LayoutV::kRowBytes);
    });
  }
  cp_async_wait<0>();
  ring.source.sync();
}
