// A warpgroup's row tile of attention on tcgen05: scores are loaded from tensor memory, P is stored to it, and O is
// rescaled in it when maxima grow.
#pragma once
#include "flash_attention/softcap.cuh"
#include "flash_attention/tcgen05/softmax.cuh"
#include "flash_attention/tcgen05/tile.cuh"
#include "register.cuh"

// A thread of the warpgroup, which has one row.
template <class Tile>
struct RowThread {
  using T = typename Tile::T;
  static constexpr int BN = Tile::BN;
  static constexpr int kChunk = 16;  // columns that are loaded or stored at once

  uint32_t tensor;  // columns of tensor memory, in the warp's lanes
  Barriers<Tile> barriers;
  int i;        // index of the row tile
  float scale;  // scale of scores, or of capped scores, in base 2
  float inner;  // softcap: scale of scores before the cap
  RowSoftmax softmax;

  // Processes one tile of keys, after `visited` others.
  __device__ __forceinline__ void attend(typename Tile::Keys::RowMask const& mask, int tile, int visited) {
    float r_s[BN];
    mbarrier_wait(barriers.scores_full(i), visited % 2);
    load_scores(r_s);
    if constexpr (Tile::kSoftcap) cap(reinterpret_cast<float (&)[1][BN / 4][4]>(r_s), Softcap{inner, scale});
    if (mask.cuts(tile)) mask.hide(r_s, tile);
    softmax.template exponentiate<Tile::kLazyRescale, Tile::kPolynomial>(r_s, scale);
    uint32_t r_p[BN / 2];
#pragma unroll
    for (int e = 0; e < BN; e += 2) r_p[e / 2] = pack<T>(r_s[e], r_s[e + 1]);
    if (visited > 0) await_output(visited - 1);
    if (visited > 0 && softmax.raised) rescale_output();
    store_probabilities(r_p);
  }
  // Waits until O includes P of `visited` + 1 tiles: P is no longer read.
  __device__ __forceinline__ void await_output(int visited) const {
    mbarrier_wait(barriers.output_full(i), visited % 2);
    tcgen05_fence_after_thread_sync();
  }
  // Columns of O from `col` on.
  __device__ __forceinline__ void load_output(float (&r_o)[kChunk], int col) const {
    tcgen05_ld_32x32b(r_o, tensor + i * Tile::DV16 + col);
    tcgen05_wait_ld();
    fence_registers(r_o);
  }

 private:
  __device__ __forceinline__ void load_scores(float (&r_s)[BN]) const {
    tcgen05_fence_after_thread_sync();
#pragma unroll
    for (int e = 0; e < BN; e += kChunk)
      tcgen05_ld_32x32b(reinterpret_cast<float (&)[kChunk]>(r_s[e]), tensor + Tile::kScores + i * BN + e);
    tcgen05_wait_ld();
    fence_registers(r_s);
    tell(barriers.scores_read(i));
  }
  __device__ __forceinline__ void store_probabilities(uint32_t const (&r_p)[BN / 2]) const {
#pragma unroll
    for (int e = 0; e < BN / 2; e += kChunk / 2)
      tcgen05_st_32x32b(tensor + Tile::kProbabilities + i * Tile::kProbabilityColumns + e,
                        reinterpret_cast<uint32_t const(&)[kChunk / 2]>(r_p[e]));
    tcgen05_wait_st();
    tell(barriers.probabilities_full(i));
  }
  __device__ __forceinline__ void rescale_output() const {
#pragma unroll
    for (int col = 0; col < Tile::DV16; col += kChunk) {
      float r_o[kChunk];
      load_output(r_o, col);
#pragma unroll
      for (int e = 0; e < kChunk; e += 2) {
        float2 const scaled = mul_pair({r_o[e], r_o[e + 1]}, both(softmax.factor));
        r_o[e] = scaled.x;
        r_o[e + 1] = scaled.y;
      }
      tcgen05_st_32x32b(tensor + i * Tile::DV16 + col, r_o);
    }
    tcgen05_wait_st();
  }
  // Signals that the warp's accesses to tensor memory are complete, to the thread that issues products.
  __device__ __forceinline__ void tell(uint32_t barrier) const {
    tcgen05_fence_before_thread_sync();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
  }
};
