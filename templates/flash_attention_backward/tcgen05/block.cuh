// A block of a pass on tcgen05, by role: one warp loads, one thread issues products, two warpgroups process rows.
#pragma once
#include "block_registers.cuh"
#include "flash_attention_backward/tcgen05/products.cuh"
#include "flash_attention_backward/tcgen05/store.cuh"

// Recomputed at each use: a value that is live throughout a role occupies a register, or spills.
__device__ __forceinline__ int own_warp() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }

// Initializes barriers and tensor memory, and prefetches maps; returns the address of tensor memory.
template <class Pass, int kMaps>
__device__ __forceinline__ uint32_t begin(unsigned char* smem, TensorBarriers<Pass> const& barriers,
                                          TensorMap const* const (&maps)[kMaps]) {
  if (own_warp() == Pass::kProductsWarp) {
    tcgen05_alloc(shared_address(smem) + Pass::kTensor, Pass::kTensorColumns);
    tcgen05_relinquish_alloc_permit();
  }
  if (threadIdx.x == 0) barriers.init();
  if (threadIdx.x == Pass::kConsumers)
    for (TensorMap const* map : maps) tma_prefetch(map);
  tcgen05_fence_before_thread_sync();
  __syncthreads();
  tcgen05_fence_after_thread_sync();
  return *reinterpret_cast<uint32_t const*>(smem + Pass::kTensor);
}

// Frees tensor memory once no thread reads it.
template <class Pass>
__device__ __forceinline__ void end(uint32_t tensor) {
  __syncwarp();
  tcgen05_fence_before_thread_sync();
  __syncthreads();
  tcgen05_fence_after_thread_sync();
  if (own_warp() == Pass::kProductsWarp) tcgen05_dealloc(tensor, Pass::kTensorColumns);
}

// Called by all threads, after `begin`: load(loader) by one of them, or by its warp with packed sequences; own(thread,
// row) by those that have rows of the block, where `row` is relative to its first row.
template <class Pass, class Scale, class Load, class Own>
__device__ __forceinline__ void run_pass(unsigned char* smem, uint32_t tensor, TensorBarriers<Pass> const& barriers,
                                         int count, Scale scale, Load const& load, Own const& own) {
  static_assert(Pass::kConsumers * Pass::kRegisters + 128 * Pass::kSpareRegisters <= block_registers(Pass::kThreads, 1),
                "setmaxnreg would deadlock");
  int const warp = own_warp();
  uint32_t const s = shared_address(smem);
  if (warp < Pass::kLoaderWarp) {
    setmaxnreg_inc<Pass::kRegisters>();
    int const i = warp / 4 / Pass::kSharers, sharer = warp / 4 % Pass::kSharers;
    uint32_t const lanes = tensor + i * Pass::kTileColumns + (uint32_t(warp % 4) << 21);
    RowThread<Pass, Scale> thread{smem, lanes, barriers, i, sharer * Pass::kColumnsOfThread, scale};
    mbarrier_wait(barriers.own(i), 0);
    own(thread, Pass::kOwnRows * i);
  } else {
    setmaxnreg_dec<Pass::kSpareRegisters>();
    bool const elected = elect_one();  // ptxas recognizes that this is a single thread
    if (warp == Pass::kLoaderWarp && (Pass::kPacked || elected)) load(Loader<Pass>{s, barriers, smem});
    if (warp == Pass::kProductsWarp && elected) Products<Pass>{s, tensor, barriers, count}.issue();
  }
}

// Processes all tiles of the row's pass, until both sums have consumed them: no arrival on a barrier may be pending
// when the block exits.
template <class Pass, class Scale>
__device__ __forceinline__ void pass_all(RowThread<Pass, Scale>& thread, RowSight<Pass> const& sight, Walk const& walk) {
#pragma unroll 1
  for (int h = 0; h < walk.heads; ++h)
#pragma unroll 1
    for (int tile = walk.first; tile < walk.end; ++tile) thread.pass(sight, tile * Pass::kTile);
  if (Pass::kOwnsKeys) thread.await_sum(kSecond);
  thread.await_sum(kFirst);
}
