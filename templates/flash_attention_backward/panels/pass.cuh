// The data that a block of a pass owns, and the tiles that stream through it. It owns rows of two tensors, 64 per
// consumer warpgroup (split: per two; tcgen05: 128), and tiles of rows of two others are streamed:
//            own first   own second   passing first         passing second
//   dK, dV   K           V            Q, with its values    dO
//   dQ       Q           dO           K                     V
// The scores are own first · (passing first)ᵀ, and the second tensors give the product from which dS is computed. Rows
// of first tensors have D elements, those of second ones DV.
#pragma once
#include "bulk.cuh"
#include "fence.cuh"
#include "flash_attention/panels/panels.cuh"
#include "mbarrier.cuh"

enum TensorRole { kFirst, kSecond };

// Elements of a row of a first or of a second tensor.
template <class Traits, int kRole>
constexpr int kWidth = kRole == kFirst ? Traits::D : Traits::DV;
// Columns of a panel of a tensor of `dim` columns: fewer than `widest` if one narrower panel suffices.
constexpr __host__ __device__ int panel_columns(int dim, int widest) {
  int const narrowest = dim > 32 ? 64 : dim > 16 ? 32 : 16;
  return narrowest < widest ? narrowest : widest;
}

// Shared memory: own rows of the first tensor, owner after owner, and of the second; a ring of tiles of each; the
// values loaded with the first tensor's tiles, a tile's shifts before its deltas; barriers.
template <class Traits, int kRowsOfOwner = 64>
struct Pass : Traits {
  using Traits::D;
  using Traits::DV;
  using Traits::kColumns;
  using Traits::kOwnsKeys;
  using Traits::kPacked;
  using Traits::kSplit;
  using Traits::kStages;
  using Traits::kTile;
  using Traits::kWarpgroups;
  static constexpr bool kOneWidth = D == DV;
  template <int kRole>
  static constexpr int kDim = kWidth<Traits, kRole>;
  // Scores and products consume 16 columns per step; TMA fills the last step with zeros.
  template <int kRole>
  static constexpr int kDim16 = (kWidth<Traits, kRole> + 15) / 16 * 16;
  template <int kRole>
  using ColumnsOf = Panels<kWidth<Traits, kRole>, panel_columns(kWidth<Traits, kRole>, kColumns), true>;
  using Columns = ColumnsOf<kFirst>;  // alias for passes in which both tensors have the same width
  static constexpr int D16 = (D + 15) / 16 * 16;
  static constexpr int kOwners = kSplit ? kWarpgroups / 2 : kWarpgroups;  // owners of kOwnRows rows each
  static constexpr int kOwnRows = kRowsOfOwner, kRows = kOwnRows * kOwners;
  static constexpr int kConsumers = 128 * kWarpgroups, kThreads = kConsumers + 128;
  static constexpr int kReaders = kConsumers / 32;  // warps that arrive after they have read a tile
  template <int kRole>
  static constexpr int kOwnBytes = ColumnsOf<kRole>::bytes(kOwnRows);
  template <int kRole>
  static constexpr int kTileBytes = ColumnsOf<kRole>::bytes(kTile);
  static constexpr int kValuesBytes = kOwnsKeys ? 8 * kTile : 0;
  static constexpr int kTiles = kOwners * (kOwnBytes<kFirst> + kOwnBytes<kSecond>);
  static constexpr int kValues = kTiles + kStages * (kTileBytes<kFirst> + kTileBytes<kSecond>);
  static constexpr int kBarriers = kValues + kStages * kValuesBytes;
  static constexpr int kSharedBytes = kBarriers + 8 * (kOwners + 4 * kStages + kPacked);

  static_assert(D % 8 == 0 && D >= 16, "gradients have whole columns of 8, and scores at least a step of 16");
  static_assert(DV % 8 == 0 && DV >= 16, "and so has dV, and the product with values");
  static_assert(kTile % 16 == 0 && kTile >= 16 && kTile <= 256, "a tile is whole steps of 16 rows, and one box");

  static constexpr __host__ __device__ int own(int role, int owner) {
    if constexpr (kOneWidth) return (role * kOwners + owner) * kOwnBytes<kFirst>;
    return role == kFirst ? owner * kOwnBytes<kFirst> : kOwners * kOwnBytes<kFirst> + owner * kOwnBytes<kSecond>;
  }
  static constexpr __host__ __device__ int tile(int role, int stage) {
    if constexpr (kOneWidth) return kTiles + (role * kStages + stage) * kTileBytes<kFirst>;
    return kTiles + (role == kFirst ? stage * kTileBytes<kFirst>
                                     : kStages * kTileBytes<kFirst> + stage * kTileBytes<kSecond>);
  }
  static constexpr __host__ __device__ int values(int stage) { return kValues + stage * kValuesBytes; }
};

// Barriers in shared memory: an owner's rows are loaded; a stage of a ring is full, or has been read by all.
template <class Pass>
struct Barriers {
  uint32_t base;

  __device__ __forceinline__ uint32_t own(int owner) const { return base + 8 * owner; }
  __device__ __forceinline__ uint32_t full(int role, int stage) const { return at(role, stage); }
  __device__ __forceinline__ uint32_t empty(int role, int stage) const { return at(2 + role, stage); }
  // Packed sequences: barrier for loads of a tile that contains rows of the next sequence.
  __device__ __forceinline__ uint32_t tail() const { return at(4, 0); }
  __device__ __forceinline__ uint32_t at(int kind, int stage) const {
    return base + 8 * (Pass::kOwners + kind * Pass::kStages + stage);
  }
  // Called by one thread; a block barrier must follow.
  __device__ __forceinline__ void init() const {
    for (int owner = 0; owner < Pass::kOwners; ++owner) mbarrier_init(own(owner), 1);
    if constexpr (Pass::kPacked) mbarrier_init(tail(), 1);
    for (int s = 0; s < Pass::kStages; ++s)
      for (int role = kFirst; role <= kSecond; ++role) {
        mbarrier_init(full(role, s), 1);
        mbarrier_init(empty(role, s), Pass::kReaders);
      }
    fence_mbarrier_init();
  }
};

// A position in the rings, and the parity of the current round.
template <int kStages>
struct Slot {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The tiles to stream: [first, end) of `heads` heads from `head` on. Their rows are relative to the tensor's row
// `row0`, where the sequence starts; it has `rows` rows.
struct Walk {
  int head, heads, first, end, batch, row0, rows;

  __device__ __forceinline__ int count() const { return heads * max(end - first, 0); }
  __device__ __forceinline__ int after(int tile) const { return tile + 1 < end ? tile + 1 : first; }
};

// One thread issues all loads of the block; with packed sequences, its warp.
template <class Pass>
struct Loader {
  using First = typename Pass::template ColumnsOf<kFirst>;
  using Second = typename Pass::template ColumnsOf<kSecond>;
  static constexpr int kOwnRows = Pass::kOwnRows;

  uint32_t smem;
  Barriers<Pass> barriers;
  unsigned char* s_block;  // generic address of `smem`

  // `maps`: tensor maps of the first and of the second tensor.
  __device__ __forceinline__ void load_own(TensorMap const* const (&maps)[2], int row, int head, int batch) const {
    if (!loads()) return;
    for (int owner = 0; owner < Pass::kOwners; ++owner) {
      uint32_t const full = barriers.own(owner);
      mbarrier_arrive_expect_tx(full, First::loaded_bytes(kOwnRows) + Second::loaded_bytes(kOwnRows));
      for (int role = kFirst; role <= kSecond; ++role)
        load<kOwnRows>(role, Pass::own(role, owner), maps, full, row + kOwnRows * owner, head, batch);
    }
  }
  // `g_values`: values of the first head, tile after tile; those of each further head are `head_values` further.
  __device__ __forceinline__ void load_tiles(TensorMap const* const (&maps)[2], Walk const& walk,
                                             float const* g_values, int64_t head_values) const {
    Slot<Pass::kStages> at;
    int tails = 0;  // parity of the barrier for the last tile
    for (int h = 0; h < walk.heads; ++h, g_values += head_values)
#pragma unroll 1
      for (int tile = walk.first; tile < walk.end; ++tile, at.advance())
        for (int role = kFirst; role <= kSecond; ++role) {
          int const own = walk.rows - tile * Pass::kTile;
          bool const is_tail = Pass::kPacked && own < Pass::kTile;
          uint32_t const full = is_tail ? barriers.tail() : barriers.full(role, at.stage);
          int const nbytes = role == kFirst ? Pass::kValuesBytes : 0;
          if (loads()) {
            mbarrier_wait(barriers.empty(role, at.stage), at.parity ^ 1);
            mbarrier_arrive_expect_tx(full, loaded_bytes(role) + nbytes);
            load<Pass::kTile>(role, Pass::tile(role, at.stage), maps, full, walk.row0 + tile * Pass::kTile,
                              walk.head + h, walk.batch);
            if (nbytes)
              cp_async_bulk(smem + Pass::values(at.stage), g_values + tile * 2 * Pass::kTile, nbytes, full);
          }
          if (is_tail) {
            mbarrier_wait(full, tails);
            tails ^= 1;
            if (Pass::kOneWidth || role == kFirst)
              clear_neighbours<First>(s_block + Pass::tile(role, at.stage), own);
            else
              clear_neighbours<Second>(s_block + Pass::tile(role, at.stage), own);
            if (loads()) mbarrier_arrive(barriers.full(role, at.stage));
          }
        }
  }

 private:
  __device__ __forceinline__ static bool loads() { return !Pass::kPacked || threadIdx.x == Pass::kConsumers; }
  // Zeroes the rows from row `own` on, which belong to the next sequence: their weights are 0, but 0 · NaN would be
  // NaN. Executed by the warp.
  template <class Columns>
  __device__ __forceinline__ static void clear_neighbours(unsigned char* s_tile, int own) {
    constexpr int kRowBytes = 2 * Columns::width(0), kPanelBytes = kRowBytes * Pass::kTile;
#pragma unroll 1
    for (int p = 0; p < Columns::kCount; ++p)
#pragma unroll 1
      for (int at = own * kRowBytes + threadIdx.x % 32 * 16; at < kPanelBytes; at += 32 * 16)
        *reinterpret_cast<uint4*>(s_tile + p * kPanelBytes + at) = {};
    fence_proxy_async();
    __syncwarp();
  }
  __device__ __forceinline__ static int loaded_bytes(int role) {
    return role == kFirst ? First::loaded_bytes(Pass::kTile) : Second::loaded_bytes(Pass::kTile);
  }
  template <int kRows>
  __device__ __forceinline__ void load(int role, int offset, TensorMap const* const (&maps)[2], uint32_t barrier,
                                       int row, int head, int batch) const {
    PanelMaps const of{maps[role], maps[role], maps[role]};
    if (Pass::kOneWidth || role == kFirst)
      First::template load<kRows>(smem + offset, of, barrier, row, head, batch);
    else
      Second::template load<kRows>(smem + offset, of, barrier, row, head, batch);
  }
};
