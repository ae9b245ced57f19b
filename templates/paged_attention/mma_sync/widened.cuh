// Tiles of 8-bit keys and values for kernels in which all warps read them: widened once, by the threads that copied
// them.
#pragma once
#include "flash_attention/ring.cuh"
#include "fp8.cuh"
#include "paged_attention/pages.cuh"

// Like Ring of 16-bit tiles of BN rows of T, with this Layout and kStages slots, in the same memory: two slots hold the
// tiles being read, one of K and one of V, and the others hold twice as many byte tiles in flight, which Source copies.
//
// A thread widens the chunks that it copied itself, so no barrier is needed before. One is needed after, once per tile
// as in Ring: when a tile is overwritten, all threads have finished with it and process one of the other kind.
template <class Source, class T, class Layout, int BN, int kStages>
struct WidenedRing : Ring<Source, 2 * (kStages - 2)> {
  static_assert(kStages >= 3, "two slots for what is read, and one or more for what is on its way");
  static constexpr int kNarrowStages = 2 * (kStages - 2), kWideBytes = BN * Layout::kRowBytes;
  static_assert(Source::kBytes * 2 <= kWideBytes, "two tiles of bytes take the place of one");
  using Narrow = Ring<Source, kNarrowStages>;
  using Share = typename Source::Share;

  unsigned char* smem;

  __device__ __forceinline__ WidenedRing(Source const& source, unsigned char* smem)
      : Narrow{source, shared_address(smem) + 2 * kWideBytes}, smem(smem) {}

  __device__ __forceinline__ void fill() {
    Narrow::fill();
    if (kStages == 3) cp_async_commit();  // attend() waits for Q with kStages - 1 groups after it
  }
  __device__ __forceinline__ uint32_t acquire(int tile, bool is_v) {
    cp_async_wait<kNarrowStages - 2>();
    this->refill(tile, is_v);
    unsigned char* const s_tile = smem + is_v * kWideBytes;
    widen(s_tile, smem + 2 * kWideBytes + (this->slot(tile, is_v) - this->s_slots));
    this->source.sync();
    return shared_address(s_tile);
  }

 private:
  __device__ __forceinline__ void widen(unsigned char* s_tile, unsigned char const* s_bytes) const {
    Share const& share = this->source.share;
    if (share.row0 >= Share::kRowsPerPass) return;
    uint32_t chunk = 2 * share.chunk;
    forget(chunk);  // otherwise the positions of all chunks stay in registers
#pragma unroll
    for (int row = 0; row < BN; row += Share::kRowsPerPass)
      if (BN % Share::kRowsPerPass == 0 || row + share.row0 < BN)
        widen_chunk(s_tile, row + share.row0, chunk, *reinterpret_cast<uint4 const*>(s_bytes + share.at(row)));
  }
  // Widens 16 bytes to two chunks. Four lanes store to even positions and the next four to odd ones, so that eight
  // lanes have no bank conflicts.
  static __device__ __forceinline__ void widen_chunk(unsigned char* s_tile, uint32_t row, uint32_t chunk, uint4 bytes) {
    uint32_t r[4][2];
    widen_bytes<T, 1>(r[0], bytes.x);
    widen_bytes<T, 1>(r[1], bytes.y);
    widen_bytes<T, 1>(r[2], bytes.z);
    widen_bytes<T, 1>(r[3], bytes.w);
    uint32_t const first = (threadIdx.x / 4 ^ Layout::offset(row, chunk) / 16) % 2;
    uint32_t one[4], other[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      one[i] = first ? r[2 + i / 2][i % 2] : r[i / 2][i % 2];
      other[i] = first ? r[i / 2][i % 2] : r[2 + i / 2][i % 2];
    }
    store(s_tile + Layout::offset(row, chunk + first), one);
    store(s_tile + Layout::offset(row, chunk + 1 - first), other);
  }
  static __device__ __forceinline__ void store(unsigned char* s_chunk, uint32_t const (&r)[4]) {
    *reinterpret_cast<uint4*>(s_chunk) = make_uint4(r[0], r[1], r[2], r[3]);
  }
};

// The ring of a block, and its source, for keys with the given number of bytes per element.
template <class Block, class Walk, int kKeyBytes = sizeof(typename Block::Key)>
struct BlockRing {
  using Tiles = TilesInPages<typename Block::Layout, typename Block::T, Block::BN, Block::kThreads, WarpWalk<Walk, 1>>;
  struct Whole : Ring<Tiles, Block::kStages> {
    __device__ __forceinline__ Whole(Tiles const& tiles, unsigned char* smem)
        : Ring<Tiles, Block::kStages>{tiles, shared_address(smem)} {}
  };
  using type = Whole;
};
template <class Block, class Walk>
struct BlockRing<Block, Walk, 1> {
  using Tiles = TilesInPages<Rows<Block::D / 2, true>, typename Block::Key, Block::BN, Block::kThreads,
                             WarpWalk<Walk, 1>>;
  using type = WidenedRing<Tiles, typename Block::T, typename Block::Layout, Block::BN, Block::kStages>;
};
