// Tiles of K and V, alternating in a ring of slots: one slot is read while the others are loaded.
#pragma once
#include "flash_attention/ring_slots.cuh"
#include "flash_attention/rows.cuh"
#include "opaque.cuh"
#include "thread.cuh"

// Tiles copied by all threads of a block. Walk defines which keys are visited: `int tiles`; `int key(int tile)`, the
// first key of a tile; `int end(int tile)`, the end of its keys: later ones become zeros.
template <class T, class Layout, class Walk, int BN, int kThreads, class LayoutV = Layout>
struct BlockTiles {
  using Share = CopyShare<Layout, BN, kThreads>;
  using ShareV = CopyShare<LayoutV, BN, kThreads>;
  static constexpr int kBytes = BN * Layout::kRowBytes;  // size of a tile of K
  static constexpr int kValueBytes = BN * LayoutV::kRowBytes;
  static constexpr bool kAlike = Layout::kChunks == LayoutV::kChunks;  // the thread's share of V is the same as of K

  Walk walk;
  Share share;
  ShareV share_v;
  T const *g_k, *g_v;  // address of the thread's share of key 0
  int64_t k_stride, v_stride;

  __device__ __forceinline__ BlockTiles(Walk const& walk, T const* g_k, T const* g_v, int64_t k_stride,
                                        int64_t v_stride)
      : walk(walk),
        share(threadIdx.x),
        share_v(threadIdx.x),
        g_k(share.first(g_k, k_stride)),
        g_v(kAlike ? share.first(g_v, v_stride) : share_v.first(g_v, v_stride)),
        k_stride(k_stride),
        v_stride(v_stride) {
    forget(this->g_k);  // otherwise all three are recomputed for every tile
    forget(this->g_v);
    forget(share.offset);
    if (!kAlike) forget(share_v.offset);
  }
  __device__ __forceinline__ void load(uint32_t s_tile, int tile, bool is_v) const {
    int const key = walk.key(tile);
    int64_t const stride = is_v ? v_stride : k_stride;
    if (kAlike || !is_v)
      share.load(s_tile, (is_v ? g_v : g_k) + key * stride, stride, walk.end(tile) - key);
    else
      share_v.load(s_tile, g_v + key * stride, stride, walk.end(tile) - key);
  }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
};

// Source is like BlockTiles: its threads copy tiles and synchronize. A tile of V has kValueBytes bytes.
template <class Source, int kStages, int kValueBytes = Source::kBytes>
struct Ring {
  static_assert(kStages >= 2, "one slot is read while at least one is filled");
  using Slots = RingSlots<kStages, Source::kBytes, kValueBytes>;

  Source source;
  uint32_t s_slots;

  // Starts copying a tile of K, or of V if `is_v`; after the last one, an empty group keeps the group count consistent.
  __device__ __forceinline__ void issue(int tile, bool is_v) {
    if (tile < source.walk.tiles) source.load(slot(tile, is_v), tile, is_v);
    cp_async_commit();
  }
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int tile = 0; tile < (kStages - 1) / 2; ++tile) {
      issue(tile, false);
      issue(tile, true);
    }
    if (kStages % 2 == 0) issue(kStages / 2 - 1, false);
  }
  // Waits for a tile, and returns its address. Every thread has then finished with the previous tile, whose slot is
  // refilled.
  __device__ __forceinline__ uint32_t acquire(int tile, bool is_v) {
    cp_async_wait<kStages - 2>();
    source.sync();
    refill(tile, is_v);
    return slot(tile, is_v);
  }
  // Starts copying the tile kStages - 1 tiles of K and V after this one.
  __device__ __forceinline__ void refill(int tile, bool is_v) {
    issue(tile + (is_v + kStages - 1) / 2, is_v == (kStages % 2 == 1));
  }
  __device__ __forceinline__ uint32_t slot(int tile, bool is_v) const {
    return s_slots + Slots::offset(2 * tile + is_v, is_v);
  }
};
