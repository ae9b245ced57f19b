// split_keys for 8-bit keys and values: a warp converts the data of a tile while it loads them from shared memory for
// the tensor core. A register of ldmatrix then holds four elements where 16-bit fragments have two, which determines
// two orders. For keys, the four are consecutive in a row: a product uses columns 4i and 4i + 1 as the 2i-th and the
// next, and 4i + 2 and 4i + 3 as those eight later, so Q is stored in shared memory in that order. For transposed
// values, they are two columns of two keys: column tiles of O come in pairs, with the even columns and the odd columns
// of 16.
#pragma once
#include "flash_attention/split_keys/split_keys.cuh"
#include "fp8.cuh"
#include "paged_attention/pages.cuh"

// Like Tile of one warp; Layout is still that of Q.
template <class Traits>
struct ByteTile : Tile<OneWarp<Traits>> {
  using Whole = Tile<OneWarp<Traits>>;
  static_assert(Traits::D % 16 == 0, "a row of bytes is a whole number of 16-byte chunks");
  using LayoutKV = Rows<Traits::D / 2, true>;  // layout of K and V
  static constexpr int kKeyBytes = Traits::BN * LayoutKV::kRowBytes, kValueBytes = kKeyBytes;
  static constexpr int kSharedBytes = Whole::kRing + Traits::kStages * kKeyBytes;
};

// SplitKeys for 8-bit tiles of K and V.
template <class Traits>
struct SplitBytes : SplitKeys<Traits> {
  using WarpTile = ByteTile<Traits>;
  using LayoutKV = typename WarpTile::LayoutKV;
  using Key = typename Traits::Key;
  // Lanes store four columns at once: consecutive rows start half of the banks apart.
  static constexpr int kSumStride = Traits::D % 32 ? Traits::D : Traits::D + 16;
  static constexpr int kSumBytes = Traits::BM * kSumStride * 4;
  static constexpr int kWarpBytes = WarpTile::kSharedBytes > kSumBytes ? WarpTile::kSharedBytes : kSumBytes;
  static constexpr int kSharedBytes = Traits::kWarps * (kWarpBytes + Traits::BM * int(sizeof(RowSum)));

  static __device__ __forceinline__ int sum_at(int row, int column) { return row * kSumStride + column; }
};

// Loads a warp's rows of Q, with each 16 columns in the order that byte keys require.
template <class Tile>
__device__ __forceinline__ void load_query_for_bytes(uint32_t s_query, PackedRows const& rows,
                                                     typename Tile::T const* g_q, int64_t query_stride,
                                                     int64_t head_stride) {
  int const valid = rows.count - rows.row0;
#pragma unroll 4
  for (int row = 0; row < Tile::BM; ++row) {
    int const found = min(row, valid - 1);
    auto const* const g_row = g_q + rows.query(found) * query_stride + rows.head(found) * head_stride;
    for (int pair = threadIdx.x % 32; pair < Tile::D / 2; pair += 32) {
      uint32_t const chunk = pair / 8 * 2 + pair % 2, within = pair % 8 / 2 * 4;
      cp_async<4>(s_query + Tile::Layout::offset(row, chunk) + within, g_row + pair * 2, row < valid ? 4 : 0);
    }
  }
}

// r_s += Q Kᵀ over 16 columns, for 8 keys, of which the lane has four bytes.
template <class T, int kM, int kN>
__device__ __forceinline__ void multiply_bytes(float (&r_s)[kM][kN][4], uint32_t const (&r_q)[kM][4], uint32_t four,
                                               int n) {
  uint32_t r_k[2];
  widen_bytes<T, 1>(r_k, four);
#pragma unroll
  for (int m = 0; m < kM; ++m) mma_m16n8k16<T>(r_s[m][n], r_q[m], r_k);
}

// r_s = Q Kᵀ: [16 kM, 8 kN], as in `scores`.
template <class Tile, bool kQueryInRegisters, int kN, class Lane>
__device__ __forceinline__ void scores_of_bytes(float (&r_s)[Tile::kM][kN][4], Query<Tile::kM, Tile::D>& r_q,
                                                uint32_t q, uint32_t s_k, Lane const& lane) {
  using T = typename Tile::T;
  using Layout = typename Tile::LayoutKV;
  clear(r_s);
#pragma unroll
  for (int step = 0; step < Tile::D / 16; step += 2) {
    constexpr int kLast = Tile::D / 16 - 1;
    if constexpr (!kQueryInRegisters) {
      load_query_step<typename Tile::Layout>(r_q, q, step);
      if (step < kLast) load_query_step<typename Tile::Layout>(r_q, q, step + 1);
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      if (step < kLast) {
        uint32_t r_k[4];
        ldmatrix<4>(r_k, Layout::advance(s_k + lane.k, step) + n * 8 * Layout::kRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_bytes<T>(r_s, r_q.k16[min(step + i % 2, kLast)], r_k[i], n + i / 2);
      } else {
        uint32_t r_k[2];
        ldmatrix<2>(r_k, s_k + lane.k_tail + n * 8 * Layout::kRowBytes);
#pragma unroll
        for (int i = 0; i < 2; ++i) multiply_bytes<T>(r_s, r_q.k16[step], r_k[i], n + i);
      }
    }
  }
}

// r_o += P V over 16 keys and the 16 columns from column tile n on; the lane has four bytes of each 8 keys.
template <int kM, int kN>
__device__ __forceinline__ void accumulate_16_columns(float (&r_o)[kM][kN][4], uint32_t const (&r_p)[kM][4],
                                                      uint32_t first, uint32_t second, int n) {
  uint32_t r_first[2], r_second[2];
  widen_bytes<fp16, 2>(r_first, first);
  widen_bytes<fp16, 2>(r_second, second);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) mma_m16n8k16<fp16>(r_o[m][n + i], r_p[m], {r_first[i], r_second[i]});
}

// r_o += P V over 16 keys and all columns; `v` as for `accumulate`.
template <class Layout, int kM, int kN>
__device__ __forceinline__ void accumulate_bytes(float (&r_o)[kM][kN][4], uint32_t const (&r_p)[kM][4], uint32_t v) {
#pragma unroll
  for (int n = 0; n < kN; n += 4) {
    uint32_t const address = Layout::advance(v, n / 2);
    if (n + 2 < kN) {
      uint32_t r_v[4];
      ldmatrix_trans<4>(r_v, address);
      accumulate_16_columns(r_o, r_p, r_v[0], r_v[1], n);
      accumulate_16_columns(r_o, r_p, r_v[2], r_v[3], n + 2);
    } else {
      uint32_t r_v[2];
      ldmatrix_trans<2>(r_v, address);
      accumulate_16_columns(r_o, r_p, r_v[0], r_v[1], n);
    }
  }
}

// Stores a warp's partial results for the block to merge, in the order of O's columns.
template <class Split>
__device__ __forceinline__ void share_pairs(float* s_o, RowSum* s_rows,
                                            float const (&r_o)[Split::WarpTile::kM][Split::WarpTile::kN][4],
                                            RowState<Split::WarpTile::kM> const& state, int lane) {
#pragma unroll
  for (int i = 0; i < 2 * Split::WarpTile::kM; ++i) {
    int const row = i * 8 + lane / 4, e = i % 2 * 2;
    float const sum = quad_sum(state.sum[i / 2][i % 2]), max = state.max[i / 2][i % 2];
    if (lane % 4 == 0) s_rows[row] = {max, sum};
#pragma unroll
    for (int n = 0; n < Split::WarpTile::kN; n += 2) {
      float const(&even)[4] = r_o[i / 2][n], (&odd)[4] = r_o[i / 2][n + 1];
      *reinterpret_cast<float4*>(s_o + Split::sum_at(row, n * 8 + lane % 4 * 4)) =
          make_float4(even[e], odd[e], even[e + 1], odd[e + 1]);
    }
  }
}

// Like attend_tiles, with P in fp16 like the values it is multiplied with.
template <class Split, class Tiles, class Attended, class Scale, class Store>
__device__ __forceinline__ void attend_bytes(unsigned char* smem, View<typename Split::T const> const& q,
                                             Tiles const& tiles, PackedRows const& rows, Attended const& attended,
                                             Scale const& scale, Store const& store) {
  using Tile = typename Split::WarpTile;
  using LayoutKV = typename Tile::LayoutKV;
  int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned char* s_warp = smem + warp * Split::kWarpBytes;
  uint32_t const s_query = shared_address(s_warp);
  uint32_t query = s_query + rows_first<typename Tile::Layout>(lane);
  forget(query);
  LaneOffsets<LayoutKV> const offsets(lane);
  Ring<Tiles, Split::kStages> ring{tiles, s_query + Tile::kRing};
  WarpMask<Split, Attended> const mask(attended, rows, lane);
  Query<Tile::kM, Tile::D> r_q;
  float r_o[Tile::kM][Tile::kN][4];
  RowState<Tile::kM> state;

  load_query_for_bytes<Tile>(s_query, rows, q.at(rows.batch, 0, rows.head0()), q.row_stride, q.head_stride);
  cp_async_commit();
  ring.fill();
  if constexpr (Split::kQueryInRegisters) {
    cp_async_wait<Split::kStages - 1>();
    __syncwarp();
    load_query<typename Tile::Layout>(r_q, query);
  }
  clear(r_o);
  reset(state);
  for (int tile = 0; tile < ring.source.walk.tiles; ++tile) {
    float r_s[Tile::kM][Split::BN / 8][4], peak[Tile::kM][2];
    uint32_t r_p[Split::BN / 16][Tile::kM][4];
    uint32_t const s_k = ring.acquire(tile, false);
    scores_of_bytes<Tile, Split::kQueryInRegisters>(r_s, r_q, query, s_k, offsets);
    float const factor = cap(r_s, scale);
    mask.hide(r_s, ring.source.walk.key(tile), 0, lane % 4 * 2);
    row_max(peak, r_s);
    raise_max<true>(state, r_o, peak, factor);
    exponentiate<fp16>(r_p, state, r_s, factor);
    uint32_t const v = ring.acquire(tile, true) + offsets.v;
#pragma unroll
    for (int step = 0; step < Split::BN / 16; ++step)
      accumulate_bytes<LayoutKV>(r_o, r_p[step], v + step * 16 * LayoutKV::kRowBytes);
  }
  cp_async_wait<0>();
  __syncwarp();

  RowSum* s_rows = reinterpret_cast<RowSum*>(smem + Split::kWarps * Split::kWarpBytes);
  share_pairs<Split>(reinterpret_cast<float*>(s_warp), s_rows + warp * Split::BM, r_o, state, lane);
  __syncthreads();
  merge_warps<Split>(smem, s_rows, rows, store);
}

// The types of a kernel for keys with the given number of bytes per element.
template <class Traits, class Walk, int kKeyBytes = sizeof(typename Traits::Key)>
struct OfKeys {
  using Split = SplitKeys<Traits>;
  using Tiles = PageTiles<Split, Walk>;
};
template <class Traits, class Walk>
struct OfKeys<Traits, Walk, 1> {
  using Split = SplitBytes<Traits>;
  using Tiles = TilesInPages<typename Split::LayoutKV, typename Traits::Key, Traits::BN, 32,
                             WarpWalk<Walk, Traits::kWarps>>;
};
