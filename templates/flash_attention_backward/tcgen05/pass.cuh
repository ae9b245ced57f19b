// The data of a block of a pass on tcgen05: the tiles of a pass with 128 own rows per row tile, columns of tensor
// memory, and barriers between a loading warp, a thread that issues products, and two warpgroups that compute P and dS.
#pragma once
#include "flash_attention/tcgen05/panels.cuh"
#include "flash_attention_backward/panels/pass.cuh"

// A warpgroup computes a row tile alone, or two share one, each with half of the columns (kSplit). Each thread has a
// row.
template <class Traits>
struct TensorPass : Pass<Traits, 128> {
  using Base = Pass<Traits, 128>;
  using Base::kConsumers;
  using Base::kOwnsKeys;
  using Base::kTile;
  static constexpr int kReaders = 1;  // readers of a tile: the products that release it
  static constexpr int kRowTiles = Base::kOwners, kSharers = Base::kWarpgroups / kRowTiles;
  static constexpr int kColumnsOfThread = kTile / kSharers;
  static constexpr int kLoaderWarp = kConsumers / 32, kProductsWarp = kLoaderWarp + 1;
  static constexpr int kRegisters = 216, kSpareRegisters = 72;

  static constexpr int kSecondSum = Base::template kDim16<kFirst>;
  static constexpr int kProducts = kSecondSum + (kOwnsKeys ? Base::template kDim16<kSecond> : 0);
  static constexpr int kOperands = kProducts + 2 * kTile;
  static constexpr int kTileColumns = kOperands + (kOwnsKeys ? 2 : 1) * (kTile / 2);  // columns per row tile
  static constexpr int kUsedColumns = kRowTiles * kTileColumns;
  static constexpr int kTensorColumns = kUsedColumns <= 64    ? 64
                                        : kUsedColumns <= 128 ? 128
                                        : kUsedColumns <= 256 ? 256
                                                              : 512;
  static constexpr int kHandovers = Base::kSharedBytes;  // offset of the barriers
  static constexpr int kTensor = kHandovers + 8 * 8 * kRowTiles;  // the address of tensor memory is stored here
  static constexpr int kSharedBytes = kTensor + 8;

  static_assert(Base::kWarpgroups == 2, "two warpgroups compute");
  static_assert(kUsedColumns <= 512, "tensor memory has 512 columns");
  static_assert(kColumnsOfThread % 8 == 0 && kColumnsOfThread <= 64, "a thread loads 8 columns at once, and 64 twice");

  // Columns of a row tile.
  static constexpr __host__ __device__ int sum(int role) { return role == kFirst ? 0 : kSecondSum; }
  static constexpr __host__ __device__ int product(int role) { return kProducts + role * kTile; }
  static constexpr __host__ __device__ int operand(int role) { return kOperands + role * (kTile / 2); }
};

// Additional barriers of row tile i, for each tensor: its product is complete (a commit), and has been read; the
// operand of its sum is written, and the sum has consumed it (a commit).
template <class Pass>
struct TensorBarriers : Barriers<Pass> {
  __device__ __forceinline__ uint32_t product_full(int role, int i) const { return handover(0, role, i); }
  __device__ __forceinline__ uint32_t product_read(int role, int i) const { return handover(1, role, i); }
  __device__ __forceinline__ uint32_t operand_full(int role, int i) const { return handover(2, role, i); }
  __device__ __forceinline__ uint32_t operand_taken(int role, int i) const { return handover(3, role, i); }
  __device__ __forceinline__ uint32_t handover(int kind, int role, int i) const {
    return this->base + Pass::kHandovers - Pass::kBarriers + 8 * (8 * i + 2 * kind + role);
  }
  // Called by one thread; a block barrier must follow. Warps arrive for the data that they have read or written.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < Pass::kRowTiles; ++i)
      for (int role = kFirst; role <= kSecond; ++role) {
        mbarrier_init(product_full(role, i), 1);
        mbarrier_init(product_read(role, i), 4 * Pass::kSharers);
        mbarrier_init(operand_full(role, i), 4 * Pass::kSharers);
        mbarrier_init(operand_taken(role, i), 1);
      }
    Barriers<Pass>::init();
  }
};
