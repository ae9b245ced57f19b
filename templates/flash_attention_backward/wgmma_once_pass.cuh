// What a block of the one pass keeps besides K, V and the rings of a pass of keys: dS of two tiles, from which dQ is
// made, parts of dQ that wait for their turn, and who may touch these.
#pragma once
#include "flash_attention_backward/wgmma_pass.cuh"

// dS lies as [own keys][queries of a tile], swizzled; a part of dQ as the accumulators that it comes from, [D / 8][128
// threads][4], so that neither is read or written with a conflict.
template <class Choice>
struct OncePass : Pass<Choice> {
  using Base = Pass<Choice>;
  using Base::D;
  using Base::kRows;
  using Base::kTile;
  static constexpr int kParts = Choice::kParts, kHeld = Choice::kHeld;
  using Slopes = Panels<kTile, 64, true>;  // of dS
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

// Barriers of what goes through kPlaces places in turn: full and empty, by the number of what is passed on.
template <int kPlaces>
struct Relay {
  uint32_t base;

  __device__ __forceinline__ static int place(int number) { return kPlaces == 1 ? 0 : number % kPlaces; }
  __device__ __forceinline__ void init(int writers, int readers) const {
    for (int i = 0; i < kPlaces; ++i) {
      mbarrier_init(base + 16 * i, writers);
      mbarrier_init(base + 16 * i + 8, readers);
    }
  }
  __device__ __forceinline__ void wait_full(int number) const { mbarrier_wait(full(number), round(number)); }
  __device__ __forceinline__ void wait_empty(int number) const { mbarrier_wait(full(number) + 8, round(number) ^ 1); }
  __device__ __forceinline__ void give(int number) const { mbarrier_arrive(full(number)); }
  __device__ __forceinline__ void give_back(int number) const { mbarrier_arrive(full(number) + 8); }

 private:
  __device__ __forceinline__ uint32_t full(int number) const { return base + 16 * place(number); }
  __device__ __forceinline__ static int round(int number) { return number / kPlaces & 1; }
};

// Arrivals are by warps, of dS of both warpgroups, and of a part by the one that made it; one thread adds parts.
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

// Tiles of queries from the last one down, head after head: every block comes to a tile behind the blocks of earlier
// keys, which began no later and have passed as many.
struct Descent {
  int head, heads, first, end, batch;

  __device__ __forceinline__ int count() const { return heads * max(end - first, 0); }
  __device__ __forceinline__ int after(int tile) const { return tile > first ? tile - 1 : end - 1; }
};

// Q with its values, and dO, by one thread. `g_values`: of the first head, and `head_values` further those of the next.
template <class Pass>
__device__ __forceinline__ void load_down(uint32_t smem, Barriers<Pass> const& barriers,
                                          TensorMap const* const (&maps)[2], Descent const& walk, float const* g_values,
                                          int64_t head_values) {
  Slot<Pass::kStages> at;
  for (int h = 0; h < walk.heads; ++h, g_values += head_values)
#pragma unroll 1
    for (int tile = walk.end - 1; tile >= walk.first; --tile, at.advance())
      for (int place = kFirst; place <= kSecond; ++place) {
        uint32_t const full = barriers.full(place, at.stage);
        int const nbytes = place == kFirst ? Pass::kValuesBytes : 0;
        mbarrier_wait(barriers.empty(place, at.stage), at.parity ^ 1);
        mbarrier_arrive_expect_tx(full, Pass::Columns::loaded_bytes(Pass::kTile) + nbytes);
        Pass::Columns::template load<Pass::kTile>(smem + Pass::tile(place, at.stage), {maps[place], maps[place], maps[place]},
                                                  full, tile * Pass::kTile, walk.head + h, walk.batch);
        if (nbytes) cp_async_bulk(smem + Pass::values(at.stage), g_values + tile * 2 * Pass::kTile, nbytes, full);
      }
}
