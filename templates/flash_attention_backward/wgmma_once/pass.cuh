// The data of a block of the single pass besides K, V and the rings of a pass of keys: dS of two tiles, from which dQ
// is computed, parts of dQ that wait for their turn, and the barriers of both.
#pragma once
#include "flash_attention_backward/panels/pass.cuh"

// The layout of dS is [own keys][queries of a tile], swizzled; that of a part of dQ is [D / 8][128 threads][4], as in
// the accumulators, so that neither is read or written with bank conflicts.
template <class Traits>
struct OncePass : Pass<Traits> {
  using Base = Pass<Traits>;
  using Base::D;
  using Base::kRows;
  using Base::kTile;
  static constexpr int kParts = Traits::kParts, kHeld = Traits::kHeld;
  using Slopes = Panels<kTile, 64, true>;  // panels of dS
  static constexpr int kSlopesBytes = Slopes::bytes(kRows), kPartFloats = kTile * D;
  static constexpr int kSlopes = (Base::kSharedBytes + 1023) / 1024 * 1024;
  static constexpr int kPart = kSlopes + 2 * kSlopesBytes;
  static constexpr int kExchange = kPart + kParts * 4 * kPartFloats;
  static constexpr int kRank = kExchange + 8 * (4 + 2 * kParts);
  static constexpr int kSharedBytes = kRank + 8;

  static_assert(kTile == 64 && Base::kWarpgroups == 2, "a warpgroup multiplies 64 queries, in turn with the other");

  static constexpr __host__ __device__ int slopes(int i) { return kSlopes + i * kSlopesBytes; }
  static constexpr __host__ __device__ int part(int i) { return kPart + i * 4 * kPartFloats; }
};

// Barriers for items that use kBuffers buffers in turn: full and empty, by the number of the item.
template <int kBuffers>
struct Relay {
  uint32_t base;

  __device__ __forceinline__ static int buffer(int number) { return kBuffers == 1 ? 0 : number % kBuffers; }
  __device__ __forceinline__ void init(int writers, int readers) const {
    for (int i = 0; i < kBuffers; ++i) {
      mbarrier_init(base + 16 * i, writers);
      mbarrier_init(base + 16 * i + 8, readers);
    }
  }
  __device__ __forceinline__ void wait_full(int number) const { mbarrier_wait(full(number), round(number)); }
  __device__ __forceinline__ void wait_empty(int number) const { mbarrier_wait(full(number) + 8, round(number) ^ 1); }
  __device__ __forceinline__ void give(int number) const { mbarrier_arrive(full(number)); }
  __device__ __forceinline__ void give_back(int number) const { mbarrier_arrive(full(number) + 8); }

 private:
  __device__ __forceinline__ uint32_t full(int number) const { return base + 16 * buffer(number); }
  __device__ __forceinline__ static int round(int number) { return number / kBuffers & 1; }
};

// Warps arrive: for dS those of both warpgroups, for a part those of the warpgroup that computed it; one thread adds
// parts.
template <class Pass>
struct Exchange {
  Relay<2> slopes;
  Relay<Pass::kParts> parts;

  __device__ __forceinline__ explicit Exchange(uint32_t smem)
      : slopes{smem + Pass::kExchange}, parts{smem + Pass::kExchange + 32} {}
  __device__ __forceinline__ void init() const {
    slopes.init(8, 4);
    parts.init(4, 1);
    fence_mbarrier_init();
  }
};

// Tiles of queries from the last one down, head after head: every block reaches a tile after the blocks of earlier
// keys, which started no later and have processed as many tiles. Their rows are relative to the tensor's row `row0`,
// where the sequence starts; it has `rows` rows.
struct Descent {
  int head, heads, first, end, batch, row0, rows;

  __device__ __forceinline__ int count() const { return heads * max(end - first, 0); }
  __device__ __forceinline__ int after(int tile) const { return tile > first ? tile - 1 : end - 1; }
};

// One thread issues all loads of the block; with packed sequences, where tiles may end with rows of the next sequence,
// its warp does. Such a tile is loaded with a barrier of its own, and passed to the consumers with these rows zeroed:
// their weights are 0, but 0 · NaN would be NaN.
template <class Pass>
struct OnceLoader {
  using Columns = typename Pass::Columns;

  uint32_t smem;
  Barriers<Pass> barriers;
  unsigned char* s_block;  // generic address of `smem`
  int tails = 0;           // parity of the barrier for the last tile

  // K and V from `row` on, where the sequence has `keys` more rows.
  __device__ __forceinline__ void load_own(TensorMap const* const (&maps)[2], int row, int keys, int head, int batch) {
    for (int owner = 0; owner < Pass::kOwners; ++owner) {
      int const left = keys - 64 * owner;
      uint32_t const full = barriers.own(owner), to = towards<64>(full, left);
      if (loads()) {
        mbarrier_arrive_expect_tx(to, 2 * Columns::loaded_bytes(64));
        for (int role = kFirst; role <= kSecond; ++role)
          load<64>(Pass::own(role, owner), maps[role], to, row + 64 * owner, head, batch);
      }
      if (to != full) give_rest<64>(full, Pass::own(kFirst, owner), Pass::own(kSecond, owner), left);
    }
  }
  // Q with its values, and dO. `g_values`: values of the first head; those of the next are `head_values` further.
  __device__ __forceinline__ void load_tiles(TensorMap const* const (&maps)[2], Descent const& walk,
                                             float const* g_values, int64_t head_values) {
    Slot<Pass::kStages> at;
    for (int h = 0; h < walk.heads; ++h, g_values += head_values)
#pragma unroll 1
      for (int tile = walk.end - 1; tile >= walk.first; --tile, at.advance())
        for (int role = kFirst; role <= kSecond; ++role) {
          int const left = walk.rows - tile * Pass::kTile, s_tile = Pass::tile(role, at.stage);
          uint32_t const full = barriers.full(role, at.stage), to = towards<Pass::kTile>(full, left);
          int const nbytes = role == kFirst ? Pass::kValuesBytes : 0;
          if (loads()) {
            mbarrier_wait(barriers.empty(role, at.stage), at.parity ^ 1);
            mbarrier_arrive_expect_tx(to, Columns::loaded_bytes(Pass::kTile) + nbytes);
            load<Pass::kTile>(s_tile, maps[role], to, walk.row0 + tile * Pass::kTile, walk.head + h, walk.batch);
            if (nbytes) cp_async_bulk(smem + Pass::values(at.stage), g_values + tile * 2 * Pass::kTile, nbytes, to);
          }
          if (to != full) give_rest<Pass::kTile>(full, s_tile, s_tile, left);
        }
  }

 private:
  __device__ __forceinline__ static bool loads() { return !Pass::kPacked || threadIdx.x == Pass::kConsumers; }
  template <int kRows>
  __device__ __forceinline__ uint32_t towards(uint32_t full, int left) const {
    return Pass::kPacked && left < kRows ? barriers.tail() : full;
  }
  template <int kRows>
  __device__ __forceinline__ void load(int offset, TensorMap const* map, uint32_t barrier, int row, int head,
                                       int batch) const {
    Columns::template load<kRows>(smem + offset, {map, map, map}, barrier, row, head, batch);
  }
  // One or two tiles of kRows rows, of which `left` belong to the sequence.
  template <int kRows>
  __device__ __forceinline__ void give_rest(uint32_t full, int tile, int other, int left) {
    mbarrier_wait(barriers.tail(), tails);
    tails ^= 1;
    clear<kRows>(s_block + tile, max(left, 0));
    if (other != tile) clear<kRows>(s_block + other, max(left, 0));
    fence_proxy_async();
    __syncwarp();
    if (loads()) mbarrier_arrive(full);
  }
  // Zeroes the rows from `first` on.
  template <int kRows>
  __device__ __forceinline__ static void clear(unsigned char* s_tile, int first) {
    constexpr int kRowBytes = 2 * Pass::kColumns, kPanelBytes = kRowBytes * kRows;
#pragma unroll 1
    for (int p = 0; p < Columns::kCount; ++p)
#pragma unroll 1
      for (int at = first * kRowBytes + threadIdx.x % 32 * 16; at < kPanelBytes; at += 32 * 16)
        *reinterpret_cast<uint4*>(s_tile + p * kPanelBytes + at) = {};
  }
};
