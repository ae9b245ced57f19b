// A warpgroup's 64 rows of attention on wgmma: the two products are issued and awaited separately, with the
// computations in between.
#pragma once
#include "flash_attention/softcap.cuh"
#include "flash_attention/wgmma/softmax.cuh"
#include "flash_attention/panels/tile.cuh"
#include "fragment.cuh"
#include "register.cuh"
#include "thread.cuh"

// The descriptor for a later slot of a ring with kBytes per slot.
template <int kBytes>
__device__ __forceinline__ uint64_t in_stage(uint64_t first, int stage) {
  static_assert(kBytes % 16 == 0, "descriptors count 16 bytes");
  return first >> 32 << 32 | (uint32_t(first) + stage * (kBytes / 16));
}

// Uniform over the warp, which the compiler cannot derive from threadIdx.
__device__ __forceinline__ int own_warpgroup() { return __shfl_sync(0xffffffff, threadIdx.x / 128, 0); }

template <class Tile>
struct Consumer {
  using T = typename Tile::T;
  static constexpr int DV = Tile::DV, BN = Tile::BN;
  using Scores = float[BN / 2];  // [64, BN]

  uint32_t smem;
  Barriers<Tile> barriers;
  int warpgroup;
  int query[2];      // queries of the thread's two rows
  typename Tile::Keys::Mask mask;
  float scale;         // scale of scores, or of capped scores, in base 2
  float inner;         // softcap: scale of scores before the cap
  Position<Tile::kStages> keys, values;  // positions of the next scores, and of the newest available values
  int released = 0;                      // stage of V that is being read
  float r_o[Tile::kSummed / 2];  // [64, DV], padded with zeros
  uint32_t r_p[BN / 16][4];
  Softmax softmax;

  // Issues S = Q Kᵀ as one group.
  __device__ __forceinline__ void issue_scores(Scores& r_s) {
    using Rows = typename Tile::Rows;
    mbarrier_wait(barriers.keys_full(keys.stage), keys.parity);
    uint32_t const s_q = smem + warpgroup * Tile::kQueryBytes, s_k = smem + Tile::kKeys;
    fence_registers(r_s);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Tile::D16; k += 16)
      wgmma_m64k16<T>(r_s, Rows::template k_major<64>(s_q, k),
                      in_stage<Tile::kKeyBytes>(Rows::template k_major<BN>(s_k, k), keys.stage), k > 0);
    wgmma_commit();
  }
  template <int kInFlight>
  __device__ __forceinline__ void wait_scores(Scores& r_s) {
    wgmma_wait<kInFlight>();
    fence_registers(r_s);
    leave_keys();
  }
  // Values use the same stages.
  __device__ __forceinline__ void leave_keys() {
    release(barriers.keys_empty(keys.stage));
    values = keys;
    keys.advance();
  }

  __device__ __forceinline__ void await_values() const {
    mbarrier_wait(barriers.values_full(values.stage), values.parity);
  }
  // Issues O += P V as one group.
  __device__ __forceinline__ void issue_values() {
    fence_registers(r_o);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BN; k += 16) multiply_values(k);
    wgmma_commit();
    released = values.stage;
  }
  // One wgmma for panels of equal width.
  __device__ __forceinline__ void multiply_values(int k) {
    using Values = typename Tile::Values;
    if constexpr (Tile::kUniform) {
      wgmma_m64k16<T, Major::kMN>(r_o, r_p[k / 16], place_of_values(k, 0), true);
    } else {
      constexpr int kEnd64 = 64 * Values::k64, kEnd32 = kEnd64 + 32 * Values::k32;
      multiply_columns<0, kEnd64>(k);
      multiply_columns<kEnd64, kEnd32>(k);
      multiply_columns<kEnd32, Tile::kSummed>(k);
    }
  }
  // Columns [kFirst, kEnd) of O, complete panels, if there are any.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void multiply_columns(int k) {
    if constexpr (kEnd > kFirst)
      wgmma_m64k16<T, Major::kMN>(reinterpret_cast<float (&)[(kEnd - kFirst) / 2]>(r_o[kFirst / 2]), r_p[k / 16],
                                  place_of_values(k, kFirst), true);
  }
  // Descriptor of 16 rows of V from row k on, of columns from `col` on.
  __device__ __forceinline__ uint64_t place_of_values(int k, int col) const {
    uint64_t const first = Tile::Values::template mn_major<BN>(smem + Tile::kValues, k, col);
    return in_stage<Tile::kValueBytes>(first, values.stage);
  }
  template <int kInFlight>
  __device__ __forceinline__ void wait_values(bool issued = true) {
    wgmma_wait<kInFlight>();
    fence_registers(r_o);
    if (issued) release(barriers.values_empty(released));
  }
  // Signals to all blocks that load into a stage that the warp has read it.
  __device__ __forceinline__ void release(uint32_t empty) const {
    int const lane = threadIdx.x % 32;
    if constexpr (Tile::kCluster == 1) {
      if (lane == 0) mbarrier_arrive(empty);
    } else {
      if (lane < Tile::kCluster) mbarrier_arrive_cluster(map_shared_rank(empty, lane));
    }
  }
  // Skips a tile that only other blocks of the cluster attend. All lanes must wait for its arrival before it is
  // released: a later wait would be for a past round.
  __device__ __forceinline__ void skip() {
    mbarrier_wait(barriers.keys_full(keys.stage), keys.parity);
    __syncwarp();
    leave_keys();
    await_values();
    __syncwarp();
    release(barriers.values_empty(values.stage));
  }

  // Converts scores to unrounded P.
  __device__ __forceinline__ void exponentiate(Scores& r_s, int tile) {
    if constexpr (Tile::kSoftcap) cap(reinterpret_cast<float (&)[1][BN / 8][4]>(r_s), Softcap{inner, scale});
    if (mask.cuts(tile)) mask.hide(r_s, query, tile);
    softmax.template exponentiate<Tile::kLazyRescale, Tile::kPolynomial>(r_s, scale);
    fence_registers(r_s);
    fence_registers(softmax.sum);
    fence_registers(softmax.factor);
  }
  // Returns `tile`, or another value >= 0 that depends on all exponentials: sums are not negative. Without the
  // dependence ptxas moves exponentials after the wait if a vote follows.
  __device__ __forceinline__ int exponentiated(int tile) const {
    return Tile::kLazyRescale ? int(__float_as_uint(softmax.sum[0]) | __float_as_uint(softmax.sum[1])) : tile;
  }
  // Prepares P and O for the next product; no product may be reading them.
  __device__ __forceinline__ void prepare(Scores const& r_s) {
    if (softmax.raised) rescale(r_o, softmax.factor);
#pragma unroll
    for (int i = 0; i < BN / 4; ++i) r_p[i / 4][i % 4] = pack<T>(r_s[2 * i], r_s[2 * i + 1]);
  }

  // Ping-pong: warpgroups alternate in issuing their products, so that the softmax of one overlaps the products of the
  // others.
  __device__ __forceinline__ void await_turn() {
    if (Tile::kPingPong) named_barrier_sync(2 + warpgroup, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if (Tile::kPingPong) named_barrier_arrive(2 + (warpgroup + 1) % Tile::kWarpgroups, 256);
  }
};
