// The thread that issues a pass's products: those of a tile before the sums of the previous tile, so that the tensor
// cores have work while P and dS are computed.
#pragma once
#include "flash_attention_backward/tcgen05/pass.cuh"

template <class Pass>
struct Products {
  using T = typename Pass::T;
  template <int kRole>
  using ColumnsOf = typename Pass::template ColumnsOf<kRole>;
  template <int kRole>
  static constexpr int kDim16 = Pass::template kDim16<kRole>;
  static constexpr int N = Pass::kTile;

  uint32_t smem, tensor;
  TensorBarriers<Pass> barriers;
  int count;  // number of streamed tiles

  __device__ __forceinline__ void issue() const {
    if (count <= 0) return;
#pragma unroll
    for (int i = 0; i < Pass::kRowTiles; ++i) mbarrier_wait(barriers.own(i), 0);
    Slot<Pass::kStages> at, next;
    multiply<kFirst>(next, 0);
    multiply<kSecond>(next, 0);
#pragma unroll 1
    for (int index = 0; index < count; ++index) {
      bool const more = index + 1 < count;
      next.advance();
      if (more) multiply<kFirst>(next, index + 1);
      if constexpr (Pass::kOwnsKeys) sum<kSecond>(at, index);
      if (more) multiply<kSecond>(next, index + 1);
      sum<kFirst>(at, index);
      at = next;
    }
  }

 private:
  // own · passingᵀ of tile `index`; the previous products have been read.
  template <int kRole>
  __device__ __forceinline__ void multiply(Slot<Pass::kStages> const& slot, int index) const {
    mbarrier_wait(barriers.full(kRole, slot.stage), slot.parity);
#pragma unroll
    for (int i = 0; i < Pass::kRowTiles; ++i) {
      mbarrier_wait(barriers.product_read(kRole, i), index % 2 ^ 1);
      tcgen05_fence_after_thread_sync();
      uint32_t const s_own = smem + Pass::own(kRole, i), s_tile = smem + Pass::tile(kRole, slot.stage);
#pragma unroll
      for (int k = 0; k < kDim16<kRole>; k += 16)
        tcgen05_mma(at_column(i, Pass::product(kRole)), k_major<ColumnsOf<kRole>, Pass::kOwnRows>(s_own, k),
                    k_major<ColumnsOf<kRole>, N>(s_tile, k), tcgen05_instruction<T, N>(), k > 0);
      tcgen05_commit(barriers.product_full(kRole, i));
    }
    if (kRole == kSecond && !Pass::kOwnsKeys) leave(kRole, slot, index);
  }
  // sum += operand · passing.
  template <int kRole>
  __device__ __forceinline__ void sum(Slot<Pass::kStages> const& slot, int index) const {
    constexpr uint32_t kInstruction = tcgen05_instruction<T, kDim16<kRole>, Major::kK, Major::kMN>();
#pragma unroll
    for (int i = 0; i < Pass::kRowTiles; ++i) {
      mbarrier_wait(barriers.operand_full(kRole, i), index % 2);
      tcgen05_fence_after_thread_sync();
      uint32_t const s_tile = smem + Pass::tile(kRole, slot.stage);
#pragma unroll
      for (int k = 0; k < N; k += 16)
        tcgen05_mma(at_column(i, Pass::sum(kRole)), at_column(i, Pass::operand(kRole) + k / 2),
                    mn_major<ColumnsOf<kRole>, N>(s_tile, k, 0), kInstruction, k > 0 || index > 0);
      tcgen05_commit(barriers.operand_taken(kRole, i));
    }
    leave(kRole, slot, index);
  }
  // Releases a stage to the loader when the products are complete; skipped if no later tile uses the stage, since
  // nothing would wait for it.
  __device__ __forceinline__ void leave(int role, Slot<Pass::kStages> const& slot, int index) const {
    if (index + Pass::kStages < count) tcgen05_commit(barriers.empty(role, slot.stage));
  }
  __device__ __forceinline__ uint32_t at_column(int i, int column) const {
    return tensor + i * Pass::kTileColumns + column;
  }
};
