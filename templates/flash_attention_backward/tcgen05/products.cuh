// The thread that issues a pass's products: those of a tile ahead of the sums of the tile before, so that the tensor cores
// have work while P and dS are computed.
#pragma once
#include "flash_attention_backward/tcgen05/pass.cuh"

template <class Pass>
struct Products {
  using T = typename Pass::T;
  template <int kPlace>
  using ColumnsOf = typename Pass::template ColumnsOf<kPlace>;
  template <int kPlace>
  static constexpr int kDim16 = Pass::template kDim16<kPlace>;
  static constexpr int N = Pass::kTile;

  uint32_t smem, tensor;
  TensorBarriers<Pass> barriers;
  int count;  // of tiles that pass by

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
  // own · passingᵀ of tile `index`; the products before have been read.
  template <int kPlace>
  __device__ __forceinline__ void multiply(Slot<Pass::kStages> const& slot, int index) const {
    mbarrier_wait(barriers.full(kPlace, slot.stage), slot.parity);
#pragma unroll
    for (int i = 0; i < Pass::kRowTiles; ++i) {
      mbarrier_wait(barriers.product_read(kPlace, i), index % 2 ^ 1);
      tcgen05_fence_after_thread_sync();
      uint32_t const s_own = smem + Pass::own(kPlace, i), s_tile = smem + Pass::tile(kPlace, slot.stage);
#pragma unroll
      for (int k = 0; k < kDim16<kPlace>; k += 16)
        tcgen05_mma(at_column(i, Pass::product(kPlace)), k_major<ColumnsOf<kPlace>, Pass::kOwnRows>(s_own, k),
                    k_major<ColumnsOf<kPlace>, N>(s_tile, k), tcgen05_instruction<T, N>(), k > 0);
      tcgen05_commit(barriers.product_full(kPlace, i));
    }
    if (kPlace == kSecond && !Pass::kOwnsKeys) leave(kPlace, slot, index);
  }
  // sum += operand · passing.
  template <int kPlace>
  __device__ __forceinline__ void sum(Slot<Pass::kStages> const& slot, int index) const {
    constexpr uint32_t kInstruction = tcgen05_instruction<T, kDim16<kPlace>, Major::kK, Major::kMN>();
#pragma unroll
    for (int i = 0; i < Pass::kRowTiles; ++i) {
      mbarrier_wait(barriers.operand_full(kPlace, i), index % 2);
      tcgen05_fence_after_thread_sync();
      uint32_t const s_tile = smem + Pass::tile(kPlace, slot.stage);
#pragma unroll
      for (int k = 0; k < N; k += 16)
        tcgen05_mma(at_column(i, Pass::sum(kPlace)), at_column(i, Pass::operand(kPlace) + k / 2),
                    mn_major<ColumnsOf<kPlace>, N>(s_tile, k, 0), kInstruction, k > 0 || index > 0);
      tcgen05_commit(barriers.operand_taken(kPlace, i));
    }
    leave(kPlace, slot, index);
  }
  // To the loader, when the products are done; nobody would wait for it where no tile takes the stage again.
  __device__ __forceinline__ void leave(int place, Slot<Pass::kStages> const& slot, int index) const {
    if (index + Pass::kStages < count) tcgen05_commit(barriers.empty(place, slot.stage));
  }
  __device__ __forceinline__ uint32_t at_column(int i, int column) const {
    return tensor + i * Pass::kTileColumns + column;
  }
};
