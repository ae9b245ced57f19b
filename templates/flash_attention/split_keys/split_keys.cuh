// Attention for few queries: the warps of a block, and kSplits blocks, split the keys of BM rows of O, and merge their
// results. The query heads of a KV head are rows like queries, so that K and V are read once for all of them.
#pragma once
#include "flash_attention/attend.cuh"
#include "flash_attention/split_keys/packed.cuh"
#include "flash_attention/split_keys/part.cuh"

// The tile of a single warp.
template <class Traits>
struct OneWarp : Traits {
  static constexpr int kWarps = 1;
  static constexpr int kParts = 1;
  static constexpr bool kSwizzle = true;
  static constexpr bool kQueryInRing = false;
};

// Constants that follow from the traits of a kernel: T, D, DV, BM, BN, kWarps, kStages, kSplits, kQueryInRegisters.
template <class Traits>
struct SplitKeys : Traits {
  using WarpTile = Tile<OneWarp<Traits>>;
  static constexpr int DV = WarpTile::DV;
  static constexpr int kThreads = 32 * Traits::kWarps;
  static constexpr int kShares = Traits::kWarps * Traits::kSplits;  // parts of the keys
  static constexpr int kVectors = DV / 4;                           // vectors of 4 elements per row of O
  // Floats per row of O while it is merged. With an odd multiple of 8, 4 rows start in 4 different banks; but if DV is
  // 16 modulo 32, the threads that continue in the next row would conflict with the others, so groups of 8 are swapped
  // instead.
  static constexpr bool kSwaps = DV % 32 == 16;
  static constexpr int kSumStride = kSwaps ? DV : 8 * (DV / 8 | 1);
  static constexpr int kSumBytes = Traits::BM * kSumStride * 4;
  static constexpr int kWarpBytes = WarpTile::kSharedBytes > kSumBytes ? WarpTile::kSharedBytes : kSumBytes;
  static constexpr int kSharedBytes = Traits::kWarps * (kWarpBytes + Traits::BM * int(sizeof(RowSum)));

  // Position of a float of a row of O while it is merged.
  static __device__ __forceinline__ int sum_at(int row, int column) {
    return row * kSumStride + (kSwaps ? column ^ row / 2 % 2 * 8 : column);
  }
};

// Rows indexed by batch, position and head; strides in elements.
template <class T>
struct View {
  T* data;
  int64_t batch_stride, row_stride, head_stride;

  __device__ __forceinline__ T* at(int b, int row, int head) const {
    return data + b * batch_stride + row * row_stride + head * head_stride;
  }
};

// Destination of results: o and lse, or rows of parts that are merged later.
template <class T, int DV>
struct Results {
  View<T> o;
  float *lse, *part_o, *part_rows;  // [B, H, T]; [parts of the keys, B, H, T, DV]; [parts of the keys, B, H, T, 2]
  int64_t items;                    // B · H · T

  // 4 elements of a row of O, from `column` on.
  __device__ __forceinline__ void store(Part const& found, int b, int query, int head, int64_t item, int column) const {
    found.store(o.at(b, query, head) + column);
    if (column == 0) lse[item] = found.lse();
  }
  __device__ __forceinline__ void store_part(Part const& found, int64_t row, int column) const {
    found.store_sums(part_o + row * DV + column);
    if (column == 0) reinterpret_cast<RowSum*>(part_rows)[row] = found.row;
  }
  __device__ __forceinline__ void add_part(Part& sum, int64_t row, int column) const {
    sum.add(part_o + row * DV + column, reinterpret_cast<RowSum const*>(part_rows)[row]);
  }
};

template <class Split>
__device__ __forceinline__ PackedRows packed_rows(int heads, int kv_heads, int seq_q) {
  int const group = heads / kv_heads;
  return {int(blockIdx.x) / Split::kSplits * Split::BM, seq_q * group, group, int(blockIdx.z), int(blockIdx.y), heads,
          seq_q};
}
// The last existing row of a block.
template <class Split>
__device__ __forceinline__ int last_row(PackedRows const& rows) {
  return min(Split::BM, rows.count - rows.row0) - 1;
}

// Every kStep-th tile of a block's walk, in [first, past).
template <class Walk, int kStep>
struct WarpWalk {
  Walk all;
  int first, tiles;

  __device__ __forceinline__ WarpWalk(Walk const& all, int first, int past)
      : all(all), first(first), tiles(ceil_div(max(past - first, 0), kStep)) {}
  __device__ __forceinline__ int key(int tile) const { return all.key(first + tile * kStep); }
  __device__ __forceinline__ int end(int tile) const { return all.end(first + tile * kStep); }
};

// Tiles copied by one warp.
template <class Split, class Attended>
struct WarpTiles {
  using Layout = typename Split::WarpTile::Layout;
  using LayoutV = typename Split::WarpTile::LayoutV;
  using T = typename Split::T;
  static constexpr int kBytes = Split::BN * Layout::kRowBytes;         // size of a tile of K
  static constexpr bool kAlike = Layout::kChunks == LayoutV::kChunks;  // the thread's share of V is the same as of K

  WarpWalk<typename Attended::Walk, Split::kShares> walk;
  CopyShare<Layout, Split::BN, 32> share;
  CopyShare<LayoutV, Split::BN, 32> share_v;
  T const *g_k, *g_v;  // slot 0; kInOrder: start of the thread's share
  int64_t k_stride, v_stride;
  Attended attended;

  __device__ __forceinline__ WarpTiles(Attended const& attended, int share_of_keys, T const* g_k, T const* g_v,
                                       int64_t k_stride, int64_t v_stride)
      : walk(attended.walk(), share_of_keys, attended.walk().tiles),
        share(threadIdx.x % 32),
        share_v(threadIdx.x % 32),
        g_k(Attended::kInOrder ? share.first(g_k, k_stride) : g_k),
        g_v(Attended::kInOrder ? share_v.first(g_v, v_stride) : g_v),
        k_stride(k_stride),
        v_stride(v_stride),
        attended(attended) {
    forget(this->g_k);  // otherwise all three are recomputed for every tile
    forget(this->g_v);
    forget(share.offset);
    if (!kAlike) forget(share_v.offset);
  }
  __device__ __forceinline__ void load(uint32_t s_tile, int tile, bool is_v) const {
    if (kAlike || !is_v)
      load_rows_of(share, s_tile, tile, is_v ? g_v : g_k, is_v ? v_stride : k_stride);
    else
      load_rows_of(share_v, s_tile, tile, g_v, v_stride);
  }
  __device__ __forceinline__ void sync() const { __syncwarp(); }

 private:
  template <class Laid>
  __device__ __forceinline__ void load_rows_of(CopyShare<Laid, Split::BN, 32> const& of, uint32_t s_tile, int tile,
                                               T const* g_rows, int64_t stride) const {
    int const key = walk.key(tile), keys = walk.end(tile) - key;
    if constexpr (Attended::kInOrder)
      of.load(s_tile, g_rows + key * stride, stride, keys);
    else
      gather_rows<Laid, Split::BN, 32>(s_tile, threadIdx.x % 32, keys,
                                       [&](int row) { return g_rows + attended.slot(key + row) * stride; });
  }
};

// The mask of a warp for its tiles, as attend() requires.
template <class Split, class Attended>
struct WarpMask {
  static constexpr int kM = Split::WarpTile::kM, kNarrow = 0;

  Attended attended;
  int limit[2 * kM];  // limits of the lane's rows

  __device__ __forceinline__ WarpMask(Attended const& attended, PackedRows const& rows, int lane) : attended(attended) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) limit[i] = attended.limit(rows.query(i * 8 + lane / 4));
  }
  __device__ __forceinline__ Span span(int) const { return Span::whole(); }
  __device__ __forceinline__ void hide(float (&r_s)[kM][Split::BN / 8][4], int key, int, int column) const {
    attended.hide(r_s, limit, key, column);
  }
};

// Stores a warp's partial results for the block to merge.
template <class Split>
__device__ __forceinline__ void share(float* s_o, RowSum* s_rows,
                                      float const (&r_o)[Split::WarpTile::kM][Split::WarpTile::kN][4],
                                      RowState<Split::WarpTile::kM> const& state, int lane) {
#pragma unroll
  for (int i = 0; i < 2 * Split::WarpTile::kM; ++i) {
    int const row = i * 8 + lane / 4;
    float const sum = quad_sum(state.sum[i / 2][i % 2]), max = state.max[i / 2][i % 2];
    if (lane % 4 == 0) s_rows[row] = {max, sum};
#pragma unroll
    for (int n = 0; n < Split::WarpTile::kN; ++n)
      *reinterpret_cast<float2*>(s_o + Split::sum_at(row, n * 8 + lane % 4 * 2)) =
          *reinterpret_cast<float2 const*>(&r_o[i / 2][n][i % 2 * 2]);
  }
}

// Merges the partial results of the warps; store(part, row, column) receives 4 elements of a row, from `column` on.
template <class Split, class Store>
__device__ __forceinline__ void merge_warps(unsigned char const* smem, RowSum const* s_rows, PackedRows const& rows,
                                            Store const& store) {
  for (int i = threadIdx.x; i < (last_row<Split>(rows) + 1) * Split::kVectors; i += Split::kThreads) {
    int const row = i / Split::kVectors, column = i % Split::kVectors * 4;
    Part part;
    for (int other = 0; other < Split::kWarps; ++other)
      part.add(reinterpret_cast<float const*>(smem + other * Split::kWarpBytes) + Split::sum_at(row, column),
               s_rows[other * Split::BM + row]);
    store(part, row, column);
  }
}

// Computes the rows of a block against the tiles that `tiles` provides for each of its warps; `scale`: the result of
// scale_of. Attended defines which keys a row attends, as for split_keys; `store` receives the rows of O, as for
// merge_warps.
template <class Split, class Tiles, class Attended, class Scale, class Store>
__device__ __forceinline__ void attend_tiles(unsigned char* smem, View<typename Split::T const> const& q,
                                             Tiles const& tiles, PackedRows const& rows, Attended const& attended,
                                             Scale const& scale, Store const& store) {
  using WarpTile = typename Split::WarpTile;
  int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  PackedQuery<WarpTile> const query{rows, q.at(rows.batch, 0, rows.head0()), q.row_stride, q.head_stride};
  unsigned char* s_warp = smem + warp * Split::kWarpBytes;
  Ring<Tiles, Split::kStages, WarpTile::kValueBytes> ring{tiles, shared_address(s_warp) + WarpTile::kRing};
  WarpMask<Split, Attended> const mask(attended, rows, lane);
  float r_o[WarpTile::kM][WarpTile::kN][4];
  RowState<WarpTile::kM> state;
  BlockCoord const at{rows.row0, rows.head0(), rows.batch, lane, 0, 0};
  attend<WarpTile, Split::kQueryInRegisters, true>(r_o, state, s_warp, query, scale, ring, mask, at);

  RowSum* s_rows = reinterpret_cast<RowSum*>(smem + Split::kWarps * Split::kWarpBytes);
  share<Split>(reinterpret_cast<float*>(s_warp), s_rows + warp * Split::BM, r_o, state, lane);
  __syncthreads();
  merge_warps<Split>(smem, s_rows, rows, store);
}

// A block's work. `scale`: the result of scale_of. Attended defines which keys the rows of the block attend, and where
// they are stored:
//   walk()                the tiles that contain a key which any row attends, as BlockTiles requires
//   limit(query)          the end of the keys of a query, an argument of `hide`
//   hide(r_s, limit, key, column)
//                         sets scores of keys that a row does not attend to -inf, in the tile at `key`; the lane's
//                         scores start `column` later. `limit`: limits of its rows
//   slot(key)             the row of K and V that contains a key; kInOrder: the row `key`
template <class Split, class Attended, class Scale>
__device__ __forceinline__ void split_keys(unsigned char* smem, View<typename Split::T const> const& q,
                                           View<typename Split::T const> const& k,
                                           View<typename Split::T const> const& v,
                                           Results<typename Split::T, Split::DV> const& results, PackedRows const& rows,
                                           Attended const& attended, Scale const& scale) {
  int const split = blockIdx.x % Split::kSplits, b = rows.batch;
  int const share_of_keys = split * Split::kWarps + threadIdx.x / 32;
  WarpTiles<Split, Attended> const tiles(attended, share_of_keys, k.at(b, 0, rows.kv_head), v.at(b, 0, rows.kv_head),
                                         k.row_stride, v.row_stride);
  attend_tiles<Split>(smem, q, tiles, rows, attended, scale, [&](Part const& found, int row, int column) {
    int64_t const item = rows.item(row);
    if constexpr (Split::kSplits == 1)
      results.store(found, b, rows.query(row), rows.head0() + rows.head(row), item, column);
    else
      results.store_part(found, split * results.items + item, column);
  });
}

// Merges 4 elements of a row of O from its parts in all splits.
template <class Split>
__device__ __forceinline__ void merge_splits(Results<typename Split::T, Split::DV> const& results, int heads,
                                             int seq_q) {
  int64_t const index = int64_t(blockIdx.x) * Split::kThreads + threadIdx.x, item = index / Split::kVectors;
  int const column = index % Split::kVectors * 4;
  if (item >= results.items) return;
  Part part;
#pragma unroll 16
  for (int split = 0; split < Split::kSplits; ++split)
    results.add_part(part, split * results.items + item, column);
  results.store(part, item / seq_q / heads, item % seq_q, item / seq_q % heads, item, column);
}
