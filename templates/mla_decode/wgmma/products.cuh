// A tile on wgmma: S = Q Kᵀ for a warpgroup's half of the keys, and O += P V for its half of the columns. V is the
// first columns of K: the same panels, transposed by the instruction. The product with a tile's last kLate rows is
// issued after the scores of the next tile, and overlaps their exponentials.
#pragma once
#include "flash_attention/products.cuh"
#include "mla_decode/attend.cuh"
#include "mla_decode/wgmma/latent.cuh"

// All threads of a warpgroup call each function. Each issue is one group, and its accumulators must not be accessed
// before `wait`.
template <class Tile>
struct WgmmaProducts {
  using T = typename Tile::T;
  using Panel = Panels<Tile::D, 64, false>;
  using Scores = float (&)[1][Tile::kKeys / 8][4];
  using Output = float (&)[1][Tile::kN][4];
  using Held = uint32_t[Tile::kHeld / 16 + 1][4];    // the first columns of Q, as operands A
  using Weights = uint32_t[Tile::kLate / 16][1][4];  // P of the last rows of a tile

  uint32_t s_block, p;  // p: this lane's address of P from rows_first
  int warpgroup;

  __device__ __forceinline__ WgmmaProducts(uint32_t s_block, BlockCoord const& at)
      : s_block(s_block),
        p(s_block + Tile::kP + at.warp_row * Tile::LayoutP::kRowBytes + rows_first<typename Tile::LayoutP>(at.lane)),
        warpgroup(at.part) {}

  // Loads the first columns of Q, which must have arrived, to registers.
  __device__ __forceinline__ void hold(Held& r_q, BlockCoord const& at) const {
#pragma unroll
    for (int k = 0; k < Tile::kHeld; k += 16)
      ldmatrix<4>(r_q[k / 16], s_block + Tile::LayoutQ::offset(at.warp_row + at.lane % 16, k / 8 + at.lane / 16));
  }
  __device__ __forceinline__ void issue_scores(Scores r_s, Held const& r_q, uint32_t s_rows) const {
    auto& r = reinterpret_cast<float(&)[Tile::kKeys / 2]>(r_s);
    uint32_t const s_mine = s_rows + warpgroup * Tile::kKeys * Tile::Layout::kRowBytes;
    begin(r);
#pragma unroll
    for (int k = 0; k < Tile::D; k += 16) {
      uint64_t const keys = Panel::template k_major<Tile::BN>(s_mine, k);
      if (k < Tile::kHeld)
        wgmma_m64k16<T>(r, r_q[k / 16], keys, k > 0);
      else
        wgmma_m64k16<T>(r, Panel::template k_major<Tile::BM>(s_block, k), keys, k > 0);
    }
    wgmma_commit();
  }
  // All rows but the last, with P of all warps in shared memory.
  __device__ __forceinline__ void issue_early(Output r_o, uint32_t s_rows) const {
    constexpr Swizzle kSwizzle = Tile::BN == 64 ? Swizzle::k128B : Swizzle::k64B;
    auto& r = reinterpret_cast<float(&)[Tile::kN * 4]>(r_o);
    uint64_t const s_p = wgmma_descriptor(s_block + Tile::kP, 16, 16 * Tile::BN, kSwizzle);
    begin(r);
#pragma unroll
    for (int row = 0; row < Tile::BN - Tile::kLate; row += 16)
      wgmma_m64k16<T, Major::kK, Major::kMN>(r, wgmma_advance(s_p, 2 * row), values(s_rows, row), true);
    wgmma_commit();
  }
  // The last rows, with the part of P saved by `keep`.
  __device__ __forceinline__ void issue_late(Output r_o, Weights const& r_p, uint32_t s_rows) const {
    auto& r = reinterpret_cast<float(&)[Tile::kN * 4]>(r_o);
    begin(r);
#pragma unroll
    for (int i = 0; i < Tile::kLate / 16; ++i)
      wgmma_m64k16<T, Major::kMN>(r, r_p[i][0], values(s_rows, Tile::BN - Tile::kLate + 16 * i), true);
    wgmma_commit();
  }
  __device__ __forceinline__ void keep(Weights& r_p) const {
#pragma unroll
    for (int i = 0; i < Tile::kLate / 16; ++i)
      ldmatrix<4>(r_p[i][0], Tile::LayoutP::advance(p, (Tile::BN - Tile::kLate) / 8 + 2 * i));
  }
  // Waits until at most the newest kInFlight groups are in flight; r must not belong to these.
  template <int kInFlight, int N>
  __device__ __forceinline__ void wait(float (&r)[1][N][4]) const {
    wgmma_wait<kInFlight>();
    fence_registers(reinterpret_cast<float(&)[N * 4]>(r));
  }

 private:
  template <int R>
  static __device__ __forceinline__ void begin(float (&r)[R]) {
    fence_registers(r);
    wgmma_fence();
  }
  // 16 rows of the tile at s_rows, and this warpgroup's columns.
  __device__ __forceinline__ uint64_t values(uint32_t s_rows, int row) const {
    return Panel::template mn_major<Tile::BN>(s_rows + warpgroup * (Tile::kN / 8) * Tile::Layout::kSpanBytes, row, 0);
  }
};

// Updates the running maxima with `peak`, the maxima of a tile's scores: `factor` is the factor by which O of previous
// tiles must be rescaled. Lazy, as in raise_max: 1 unless a row grows by more than a factor of 2^8 of exponentials.
__device__ __forceinline__ void raise_later(RowState<1>& state, float (&factor)[2], float const (&peak)[1][2],
                                            float scale) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float const raised = fmaxf(state.max[0][h], peak[0][h] * scale);
    float const kept = raised - state.max[0][h] > 8 ? raised : state.max[0][h];
    factor[h] = exp2_approx(state.max[0][h] - kept);
    state.max[0][h] = kept;
    state.sum[0][h] *= factor[h];
  }
}

// AttendOnMma with products on wgmma.
struct AttendOnWgmma {
  template <class Tile>
  static __device__ __forceinline__ void run(float (&r_o)[1][Tile::kN][4], RowState<1>& state, unsigned char* smem,
                                             Visible<Tile> const& visible, float scale, LatentRing<Tile>& ring,
                                             BlockCoord const& at) {
    WgmmaProducts<Tile> const products(shared_address(smem), at);
    typename WgmmaProducts<Tile>::Weights r_late = {};
    typename WgmmaProducts<Tile>::Held r_q;
    uint32_t s_late = ring.slot(0);  // any initialized rows: multiplied by 0 before the first tile
    if (Tile::kHeld > 0) {
      cp_async_wait<2 * (Tile::kStages - 1)>();
      __syncthreads();
      products.hold(r_q, at);
    }
#pragma unroll 1
    for (int tile = 0; tile < ring.tiles; ++tile) {
      float r_s[1][Tile::kKeys / 8][4], peak[1][2], factor[2];
      uint32_t r_p[Tile::kKeys / 16][1][4];
      uint32_t const s_rows = ring.acquire(tile);
      products.issue_scores(r_s, r_q, s_rows);
      products.issue_late(r_o, r_late, s_late);
      products.template wait<1>(r_s);
      visible.peaks(peak, r_s, smem, ring.key(tile), at);
      raise_later(state, factor, peak, scale);
      exponentiate<typename Tile::T>(r_p, state, r_s, scale);
      end_basic_block(int(__float_as_uint(state.sum[0][0]) | __float_as_uint(state.sum[0][1])));
      products.template wait<0>(r_o);
      rescale(r_o, factor);
      share_p<Tile, Tile::kKeys>(smem, r_p, at);
      fence_proxy_async();
      __syncthreads();  // P is stored, and the last rows of the previous tile are no longer used
      ring.issue_late();
      products.issue_early(r_o, s_rows);
      products.keep(r_late);
      s_late = s_rows;
      products.template wait<0>(r_o);
    }
    if (ring.tiles == 0) return;
    products.issue_late(r_o, r_late, s_late);
    products.template wait<0>(r_o);
  }

  // Skipped if it changes no row of the warp.
  template <int N>
  static __device__ __forceinline__ void rescale(float (&r_o)[1][N][4], float const (&factor)[2]) {
    if (!__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (int e = 0; e < 4 * N; ++e) r_o[0][e / 4][e % 4] *= factor[e / 2 % 2];
  }
};
