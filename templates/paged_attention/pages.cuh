// Locations of a sequence's keys in the pages of a cache, and copies of tiles of them to shared memory.
#pragma once
#include "flash_attention/split_keys/split_keys.cuh"
#include "opaque.cuh"

// The pages of one sequence, in the order of its positions. A page holds 2^shift positions.
struct Table {
  int const* entries;
  int64_t stride;
  int shift;

  __device__ __forceinline__ int page(int key) const { return entries[(key >> shift) * stride]; }
  __device__ __forceinline__ int row(int key) const { return key & ((1 << shift) - 1); }
};

__device__ __forceinline__ Table table_of(int const* entries, int64_t stride, int page_size) {
  return {entries, stride, 31 - __clz(page_size)};
}

// K or V of one KV head: address of page 0, with strides in elements.
template <class T>
struct Cache {
  T const* data;
  int64_t page_stride, row_stride;

  // The offset of a row, in bytes.
  __device__ __forceinline__ int64_t offset(int page, int row) const {
    return (page * page_stride + row * row_stride) * int64_t(sizeof(T));
  }
};

// Tiles that kThreads threads copy, as Ring requires: those of a warp, or of a block. Each lane looks up the pages of a
// few of the keys that its warp copies, one tile ahead, and shuffles the addresses to the lanes that copy these keys;
// so no copy waits for the table, for any page size. Walk is like that of BlockTiles.
template <class TileLayout, class Element, int BN, int kThreads, class Walk>
struct TilesInPages {
  using Layout = TileLayout;
  using T = Element;
  using Share = CopyShare<Layout, BN, kThreads>;
  static constexpr int kBytes = BN * Layout::kRowBytes;
  static constexpr int kRowsPerPass = Share::kRowsPerPass, kLastPass = (BN - 1) / kRowsPerPass;
  // Rows of a pass that the lanes of a warp copy: the maximum number that 32 consecutive chunks can span.
  static constexpr int kChunks = Layout::kChunks, kFirstLane = kChunks - greatest_common_divisor(kChunks, 32);
  static constexpr int kWidest = (kFirstLane + 31) / kChunks + 1;
  static constexpr int kKeysPerPass = kWidest < kRowsPerPass ? kWidest : kRowsPerPass;
  static constexpr int kLeft = BN - kLastPass * kRowsPerPass;  // rows of the last pass
  // keys per lane
  static constexpr int kKeys = ceil_div(kLastPass * kKeysPerPass + (kKeysPerPass < kLeft ? kKeysPerPass : kLeft), 32);
  static constexpr int kTogether = 4;  // passes per branch of the lanes that copy

  Walk walk;
  Table table;
  Cache<T> k, v;
  Share share;
  int page[kKeys], next[kKeys];  // pages of the tile being loaded, and of the next one

  __device__ __forceinline__ TilesInPages(Walk const& walk, Table const& table, Cache<T> const& k, Cache<T> const& v)
      : walk(walk), table(table), k(k), v(v), share(threadIdx.x % kThreads) {
    forget(share.offset);  // otherwise it is recomputed for every tile
    look_up(0);
  }
  // Loads a tile; a tile of K before that of V.
  __device__ __forceinline__ void load(uint32_t s_tile, int tile, bool is_v) {
    if (!is_v) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) page[i] = next[i];
      look_up(tile + 1);
    }
    int const key = walk.key(tile), keys = walk.end(tile) - key;
    Cache<T> const& cache = is_v ? v : k;
    int64_t offset[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) offset[i] = cache.offset(page[i], table.row(key + min(mine(i), keys - 1)));
    gather(s_tile, cache.data, offset, keys);
  }
  __device__ __forceinline__ void sync() const {
    if constexpr (kThreads == 32)
      __syncwarp();
    else
      __syncthreads();
  }

 private:
  // The first row of this lane's warp in a pass.
  static __device__ __forceinline__ int first_row() {
    return kThreads == 32 ? 0 : threadIdx.x / 32 * 32 / kChunks;
  }
  // The i-th key of a tile that this lane looks up: a warp's keys are numbered pass by pass, kKeysPerPass in each.
  static __device__ __forceinline__ int mine(int i) {
    int const counted = i * 32 + threadIdx.x % 32;
    if (kKeysPerPass == kRowsPerPass) return counted + first_row();
    return counted / kKeysPerPass * kRowsPerPass + first_row() + counted % kKeysPerPass;
  }
  // Looks up the pages of a tile; keys outside the walk have no page.
  __device__ __forceinline__ void look_up(int tile) {
    if (tile >= walk.tiles) return;
    int const key = walk.key(tile), last = walk.end(tile) - 1;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) next[i] = table.page(min(key + mine(i), last));
  }
  // Starts copying a tile; the first `keys` of its keys exist; the offset of the key numbered j is offset[j / 32] of
  // lane j % 32.
  __device__ __forceinline__ void gather(uint32_t s_tile, T const* data, int64_t const (&offset)[kKeys],
                                         int keys) const {
    char const* g_chunk = reinterpret_cast<char const*>(data + share.chunk * int(16 / sizeof(T)));
    int const left = keys - share.row0;
#pragma unroll
    for (int first = 0; first <= kLastPass; first += kTogether) {
      int64_t found[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) found[i] = drawn(offset, first + i);
      if (share.row0 >= kRowsPerPass) continue;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        int const row = (first + i) * kRowsPerPass;
        if (row < BN && (BN % kRowsPerPass == 0 || row + share.row0 < BN))
          cp_async<16>(s_tile + share.at(row), g_chunk + found[i], row < left ? 16 : 0);
      }
    }
  }
  // The offset of the key that this lane copies in a pass.
  __device__ __forceinline__ int64_t drawn(int64_t const (&offset)[kKeys], int pass) const {
    int const counted = pass * kKeysPerPass, lane = (counted + share.row0 - first_row()) % 32;
    int const first = min(counted / 32, kKeys - 1), last = min((counted + kKeysPerPass - 1) / 32, kKeys - 1);
    int64_t const found = __shfl_sync(0xffffffff, offset[first], lane);
    if (first == last) return found;
    int64_t const later = __shfl_sync(0xffffffff, offset[last], lane);
    return counted + share.row0 - first_row() < 32 * last ? found : later;
  }
};

// The tiles of a block that one of its warps copies.
template <class Split, class Walk>
using PageTiles = TilesInPages<typename Split::WarpTile::Layout, typename Split::T, Split::BN, 32,
                               WarpWalk<Walk, Split::kWarps>>;
