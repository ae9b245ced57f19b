// Stores a row tile of a gradient through the shared memory of one of its own tensors, which is no longer read.
#pragma once
#include "bulk.cuh"
#include "fence.cuh"
#include "flash_attention_backward/target.cuh"
#include "flash_attention_backward/tcgen05/rows.cuh"
#include "thread.cuh"

// factor · sum of the thread's row, rounded, 8 columns at a time; zeros if nothing was summed. Warpgroups that share
// the row alternate in groups of 16 columns.
template <int kRole, class Pass, class Scale, class Store>
__device__ __forceinline__ void round_sum(RowThread<Pass, Scale> const& thread, bool summed, float factor,
                                          Store const& store) {
  constexpr int kChunk = 16;
  int const sharer = thread.first / Pass::kColumnsOfThread;
#pragma unroll
  for (int begin = 0; begin < Pass::template kDim16<kRole>; begin += kChunk * Pass::kSharers) {
    int const col = begin + kChunk * sharer;
    if (col >= Pass::template kDim16<kRole>) break;
    float r_sum[kChunk] = {};
    if (summed) {
      tcgen05_ld_32x32b(r_sum, thread.tensor + Pass::sum(kRole) + col);
      tcgen05_wait_ld();
      fence_registers(r_sum);
    }
#pragma unroll
    for (int e = 0; e < kChunk; e += 8) {
      uint32_t packed[4];
#pragma unroll
      for (int p = 0; p < 4; ++p)
        packed[p] = pack<typename Pass::T>(r_sum[e + 2 * p] * factor, r_sum[e + 2 * p + 1] * factor);
      store(col + e, uint4{packed[0], packed[1], packed[2], packed[3]});
    }
  }
}

// Stores the 128 rows from `row` on. A copy clips rows beyond the tensor; if a packed sequence ends among them, it
// would overwrite the next sequence, so threads store their own rows instead.
template <int kRole, class Pass, class Scale>
__device__ __forceinline__ void store_gradient(Target<typename Pass::T> const& target,
                                               RowThread<Pass, Scale> const& thread, bool summed, float factor, int row) {
  using Columns = typename Pass::template ColumnsOf<kRole>;
  constexpr int kRows = Pass::kOwnRows;
  int const lane = threadIdx.x % kRows;
  if (Pass::kPacked && row + kRows > target.rows) {
    bool const own = row + lane < target.rows;
    auto* g_row = target.g_rows + (row + lane) * target.stride;
    round_sum<kRole>(thread, summed, factor, [&](int col, uint4 eight) {
      if (own && col < Pass::template kDim<kRole>) *reinterpret_cast<uint4*>(g_row + col) = eight;
    });
    return;
  }
  unsigned char* s_rows = thread.smem + Pass::own(kRole, thread.i);
  round_sum<kRole>(thread, summed, factor, [&](int col, uint4 eight) {
    *reinterpret_cast<uint4*>(s_rows + Columns::offset(kRows, lane, col)) = eight;
  });
  fence_proxy_async();
  named_barrier_sync(1 + thread.i, kRows * Pass::kSharers);  // the gradient is written
  if (thread.first != 0 || lane != 0 || row >= target.rows) return;
  Columns::template store<kRows>({target.map, target.map, target.map}, shared_address(s_rows), target.row0 + row,
                                 target.head, target.batch);
  cp_async_bulk_commit();
  cp_async_bulk_wait_read<0>();
}
