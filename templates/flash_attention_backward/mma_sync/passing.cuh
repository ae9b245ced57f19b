// Tiles of Q and dO that stream through a block of keys, with the values of their rows.
#pragma once
#include "flash_attention/ring.cuh"

// Processes the heads that share the keys one after another, each with the same tiles. Walk is as for BlockTiles; its
// `keys` is the number of rows of a head. LayoutV: layout of rows of dO.
template <class T, class Layout, class Walk, int BM, int kThreads, class LayoutV = Layout>
struct QueryTiles {
  static_assert(BM <= kThreads, "a thread copies the values of one row");
  static constexpr int kBytes = BM * Layout::kRowBytes, kSecondBytes = BM * LayoutV::kRowBytes;
  static constexpr int kSlotBytes = kBytes + kSecondBytes + 8 * BM;  // Q, dO, shift and delta

  int count;        // number of tiles over all heads
  int first, tile;  // first tile of a head; the next tile
  BlockTiles<T, Layout, Walk, BM, kThreads, LayoutV> rows;  // Q and dO of the head
  float const* g_values;
  int64_t q_head_stride, dout_head_stride;

  __device__ __forceinline__ void load(uint32_t s_slot, int) {
    rows.load(s_slot, tile, false);
    rows.load(s_slot + kBytes, tile, true);
    int const row = rows.walk.key(tile) + int(threadIdx.x);
    if (threadIdx.x < BM)  // zeros for rows past the end; their dO is zero too
      cp_async<8>(s_slot + kBytes + kSecondBytes + threadIdx.x * 8, g_values + 2 * int64_t(row),
                  row < rows.walk.end(tile) ? 8 : 0);
    if (++tile < rows.walk.tiles) return;
    tile = first;
    rows.g_k += q_head_stride;
    rows.g_v += dout_head_stride;
    g_values += 2 * int64_t(rows.walk.keys);
  }
};

// Tiles of K and V that stream through a block of queries. LayoutV: layout of rows of V.
template <class T, class Layout, class Walk, int BN, int kThreads, class LayoutV = Layout>
struct KeyTiles {
  static constexpr int kBytes = BN * Layout::kRowBytes;
  static constexpr int kSlotBytes = kBytes + BN * LayoutV::kRowBytes;

  int count;
  BlockTiles<T, Layout, Walk, BN, kThreads, LayoutV> rows;

  __device__ __forceinline__ void load(uint32_t s_slot, int tile) const {
    rows.load(s_slot, tile, false);
    rows.load(s_slot + kBytes, tile, true);
  }
};
