// A block's part of dQ: from dS of both warpgroups to the sums in global memory, in order with the other blocks.
#pragma once
#include "atomic.cuh"
#include "bulk_reduce.cuh"
#include "flash_attention_backward/wgmma_once/pass.cuh"
#include "flash_attention_backward/panels/rows.cuh"
#include "ldmatrix.cuh"

// Row of a lane in four 8x8 matrices, 16 by 16 elements of its warp's rows in a warpgroup, in the order of operand A.
__device__ __forceinline__ int matrix_row() {
  return threadIdx.x % 128 / 32 * 16 + threadIdx.x / 8 % 2 * 8 + threadIdx.x % 8;
}
__device__ __forceinline__ int matrix_col() { return threadIdx.x % 32 / 16 * 8; }

// Stores the warpgroup's rows of dS of tile `number`, for the warpgroup that multiplies them.
template <class Pass>
__device__ __forceinline__ void give_slopes(Rows<Pass> const& rows, Exchange<Pass> const& exchange,
                                            typename Rows<Pass>::Operand const& r_ds, int number) {
  uint32_t const s_row = shared_address(rows.smem) + Pass::slopes(number % 2) +
                         Pass::Slopes::offset(Pass::kRows, 64 * rows.owner + matrix_row(), matrix_col());
  exchange.slopes.wait_empty(number);
#pragma unroll
  for (int q = 0; q < Pass::kTile; q += 16) stmatrix(s_row ^ 2 * q, r_ds[q / 16]);  // swizzled: a row is one span
  fence_proxy_async();
  __syncwarp();
  if (threadIdx.x % 32 == 0) exchange.slopes.give(number);
}

// dS · K of tile `number`, over all keys of the block: a part of dQ, which is passed to the adding thread.
template <class Pass>
__device__ __forceinline__ void make_part(Rows<Pass> const& rows, Exchange<Pass> const& exchange, int number) {
  uint32_t const smem = shared_address(rows.smem), s_ds = smem + Pass::slopes(number % 2);
  typename Rows<Pass>::Sums r_dq;
  exchange.slopes.wait_full(number);
  fence_registers(r_dq);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < Pass::kRows; k += 16) {
    uint64_t const slopes = Pass::Slopes::template mn_major<Pass::kRows>(s_ds, k, 0);
    uint64_t const keys = Pass::Columns::template mn_major<64>(smem + Pass::own(kFirst, k / 64), k % 64, 0);
    wgmma_m64k16<typename Pass::T, Major::kMN, Major::kMN>(r_dq, slopes, keys, k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  fence_registers(r_dq);
  bool const tells = threadIdx.x % 32 == 0;
  if (tells) exchange.slopes.give_back(number);
  exchange.parts.wait_empty(number);
  float4* s_part = reinterpret_cast<float4*>(rows.smem + Pass::part(Relay<Pass::kParts>::buffer(number)));
#pragma unroll
  for (int i = 0; i < Pass::D / 8; ++i)
    s_part[i * 128 + threadIdx.x % 128] = make_float4(r_dq[4 * i], r_dq[4 * i + 1], r_dq[4 * i + 2], r_dq[4 * i + 3]);
  fence_proxy_async();
  __syncwarp();
  if (tells) exchange.parts.give(number);
}

// One thread for each of the kParts buffers: adds its parts to the sums of their tile as the `turn`-th block to do so;
// the first block writes instead of adding. `g_sums` and `g_turns` start at the first head, and have `tiles` entries
// per head.
template <class Pass>
__device__ __forceinline__ void add_parts(uint32_t smem, Exchange<Pass> const& exchange, Descent const& walk, int adder,
                                          float* g_sums, int* g_turns, int tiles, int turn) {
  uint32_t const s_part = smem + Pass::part(adder);
  int const count = walk.count();
  int tile = walk.end - 1;
#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    if (Relay<Pass::kParts>::buffer(number) == adder) {
      exchange.parts.wait_full(number);
      if (turn > 0)
        while (load_acquire(g_turns + tile) != turn) backoff();
      fence_proxy_async_global();
      float* g_tile = g_sums + int64_t(tile) * Pass::kPartFloats;
      if (turn > 0)
        cp_async_bulk_add(g_tile, s_part, 4 * Pass::kPartFloats);
      else
        cp_async_bulk_store(g_tile, s_part, 4 * Pass::kPartFloats);
      cp_async_bulk_commit();
      cp_async_bulk_wait_read<0>();
      exchange.parts.give_back(number);
      cp_async_bulk_wait<0>();
      store_release(g_turns + tile, turn + 1);
    }
    if (tile == walk.first) {
      g_sums += int64_t(tiles) * Pass::kPartFloats;
      g_turns += tiles;
    }
    tile = walk.after(tile);
  }
}
