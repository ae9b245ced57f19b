// How a warpgroup's rows of a gradient leave the block: through the place of one of its own tensors, which nobody reads
// any more.
#pragma once
#include "flash_attention_backward/wgmma_rows.cuh"

// factor · r_sum, rounded, as the panels of the own rows lie.
template <class Pass>
__device__ __forceinline__ void write_gradient(unsigned char* s_rows, typename Rows<Pass>::Sums const& r_sum,
                                               float factor) {
  int const thread = threadIdx.x % 128;
#pragma unroll
  for (int e = 0; e < Pass::D / 2; e += 2) {
    // Columns of a pair lie in one panel whatever the thread: the panel follows from those of thread 0.
    int const col = M64K16::C::col(0, e), row = M64K16::C::row(thread, e), within = M64K16::C::col(thread, e) - col;
    *reinterpret_cast<uint32_t*>(s_rows + Pass::Columns::offset(64, row, col) + 2 * within) =
        pack<typename Pass::T>(r_sum[e] * factor, r_sum[e + 1] * factor);
  }
}

// To the 64 rows from `row` on, of which `seq` exist: the copy cuts the others off.
template <Place kPlace, class Pass>
__device__ __forceinline__ void store_gradient(TensorMap const* map, Rows<Pass> const& rows,
                                               typename Rows<Pass>::Sums const& r_sum, float factor, int row, int seq,
                                               int head, int batch) {
  unsigned char* s_rows = rows.smem + Pass::own(kPlace, rows.owner);
  constexpr int kReaders = Pass::kSplit ? 256 : 128;
  named_barrier_sync(Pass::kSplit ? 8 : 1 + rows.warpgroup, kReaders);  // they have left what lies there
  write_gradient<Pass>(s_rows, r_sum, factor);
  fence_proxy_async();
  named_barrier_sync(1 + rows.warpgroup, 128);  // the gradient is there
  if (threadIdx.x % 128 != 0 || row >= seq) return;
  Pass::Columns::template store<64>({map, map, map}, shared_address(s_rows), row, head, batch);
  cp_async_bulk_commit();
  cp_async_bulk_wait_read<0>();
}
