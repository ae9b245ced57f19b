// Tiles of fp32 that are rounded to tf32 once, in place, each chunk by the thread that copied it.
#pragma once
#include "flash_attention/ring.cuh"
#include "mma.cuh"

// Rounds this thread's share of a tile of kRows rows, after waiting for its copies; a barrier must follow before other
// threads read the tile.
template <class Layout, int kRows, int kThreads>
__device__ __forceinline__ void round_rows(unsigned char* s_tile, CopyShare<Layout, kRows, kThreads> const& share) {
  using Share = CopyShare<Layout, kRows, kThreads>;
  if (share.row0 >= Share::kRowsPerPass) return;
#pragma unroll
  for (int row = 0; row < kRows; row += Share::kRowsPerPass) {
    if (kRows % Share::kRowsPerPass != 0 && row + share.row0 >= kRows) continue;
    uint4* const chunk = reinterpret_cast<uint4*>(s_tile + share.at(row));
    uint4 const x = *chunk;
    *chunk = make_uint4(round_tf32(__uint_as_float(x.x)), round_tf32(__uint_as_float(x.y)),
                        round_tf32(__uint_as_float(x.z)), round_tf32(__uint_as_float(x.w)));
  }
}

// kRounds: tiles are rounded before the barrier of acquire().
template <class Source, int kStages, int kValueBytes, bool kRounds>
struct RoundingRing : Ring<Source, kStages, kValueBytes> {
  unsigned char* smem;  // address of s_slots

  __device__ __forceinline__ uint32_t acquire(int tile, bool is_v) {
    if constexpr (!kRounds) return Ring<Source, kStages, kValueBytes>::acquire(tile, is_v);
    cp_async_wait<kStages - 2>();
    unsigned char* s_tile = smem + (this->slot(tile, is_v) - this->s_slots);
    if (Source::kAlike || !is_v)
      round_rows(s_tile, this->source.share);
    else
      round_rows(s_tile, this->source.share_v);
    this->source.sync();
    this->refill(tile, is_v);
    return this->slot(tile, is_v);
  }
};
