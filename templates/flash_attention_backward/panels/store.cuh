// Stores a warpgroup's rows of a gradient through the shared memory of one of its own tensors, which is no longer read.
#pragma once
#include "flash_attention_backward/target.cuh"
#include "flash_attention_backward/panels/rows.cuh"

// Writes factor · r_sum, rounded, in the panel layout of the own rows.
template <class Pass, TensorRole kRole>
__device__ __forceinline__ void write_gradient(unsigned char* s_rows,
                                               typename Rows<Pass>::template SumsOf<kRole> const& r_sum, float factor) {
  int const thread = threadIdx.x % 128;
#pragma unroll
  for (int e = 0; e < Pass::template kDim<kRole> / 2; e += 2) {
    // The columns of a pair are in one panel for every thread: the panel follows from those of thread 0.
    int const col = M64K16::C::col(0, e), row = M64K16::C::row(thread, e), within = M64K16::C::col(thread, e) - col;
    *reinterpret_cast<uint32_t*>(s_rows + Pass::template ColumnsOf<kRole>::offset(64, row, col) + 2 * within) =
        pack<typename Pass::T>(r_sum[e] * factor, r_sum[e + 1] * factor);
  }
}

// Stores the rows of the warpgroup's 64 that belong to the sequence, if a copy of all would overwrite the next
// sequence.
template <class Pass, TensorRole kRole>
__device__ __forceinline__ void store_own(Target<typename Pass::T> const& target, unsigned char const* s_rows, int row) {
  using Columns = typename Pass::template ColumnsOf<kRole>;
  constexpr int kRowBytes = 2 * Columns::width(0), kPanelBytes = 64 * kRowBytes;
  // The rows are read in storage order, without bank conflicts: the swizzle is its own inverse.
  for (int at = threadIdx.x % 128 * 16; at < Columns::kCount * kPanelBytes; at += 128 * 16) {
    int const within = swizzled(at % kPanelBytes, Columns::swizzle(Columns::width(0)));
    int const own = within / kRowBytes, col = at / kPanelBytes * Columns::width(0) + within % kRowBytes / 2;
    if (row + own < target.rows && col < Pass::template kDim<kRole>)
      *reinterpret_cast<uint4*>(target.g_rows + (row + own) * target.stride + col) =
          *reinterpret_cast<uint4 const*>(s_rows + at);
  }
}

// Stores the 64 rows from `row` on; the copy clips rows beyond the tensor.
template <TensorRole kRole, class Pass>
__device__ __forceinline__ void store_gradient(Target<typename Pass::T> const& target, Rows<Pass> const& rows,
                                               typename Rows<Pass>::template SumsOf<kRole> const& r_sum, float factor,
                                               int row) {
  unsigned char* s_rows = rows.smem + Pass::own(kRole, rows.owner);
  constexpr int kReaders = Pass::kSplit ? 256 : 128;
  named_barrier_sync(Pass::kSplit ? 8 : 1 + rows.warpgroup, kReaders);  // all have finished reading that memory
  write_gradient<Pass, kRole>(s_rows, r_sum, factor);
  fence_proxy_async();
  named_barrier_sync(1 + rows.warpgroup, 128);  // the gradient is written
  if (Pass::kPacked && row + 64 > target.rows) return store_own<Pass, kRole>(target, s_rows, row);
  if (threadIdx.x % 128 != 0 || row >= target.rows) return;
  Pass::template ColumnsOf<kRole>::template store<64>({target.map, target.map, target.map}, shared_address(s_rows),
                                                     target.row0 + row, target.head, target.batch);
  cp_async_bulk_commit();
  cp_async_bulk_wait_read<0>();
}
