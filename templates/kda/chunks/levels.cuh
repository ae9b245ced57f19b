// The tiles of a chunk for gates of any size: all factors are decays, at most 1, and no sum is split into a difference.
#pragma once
#include "kda/chunks/prep_rows.cuh"
#include "math.cuh"
#include "opaque.cuh"
#include "register.cuh"

// Two of 16 tokens whose highest differing bit is b are in the earlier and in the later half of a run of 2^(b + 1)
// tokens. Their score belongs to "level" b: the later one, decayed since the start of its half, times the earlier one,
// decayed until then. Every level has 8 later tokens and 8 earlier ones, so that a product of 16 rows, keys above
// queries, and 8 columns contains all its scores, for any gates; four levels contain all except the diagonal. The tiles
// of a chunk hold two levels at a time.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kNormalize, Gating kGating, class Operands,
          bool kOuts, bool kOnce>
struct PrepLevels : PrepRows<T, Gate, Beta, K, C, kGroups, kNormalize, kGating, Operands, kOuts, kOnce> {
  using Rows = PrepRows<T, Gate, Beta, K, C, kGroups, kNormalize, kGating, Operands, kOuts, kOnce>;
  using Tiles = typename Rows::Tiles;
  using typename Rows::Channels, typename Rows::Registers, typename Tiles::Folds, typename Tiles::Image;
  using Rows::first, Rows::group, Rows::k_scale, Rows::kOutputs, Rows::kQuads, Rows::kTokens, Rows::q_scale, Rows::quad;
  using Tiles::floats, Tiles::kElement, Tiles::kSubs, Tiles::kThreads, Tiles::kWarps, Tiles::lane, Tiles::rows;
  using Tiles::smem, Tiles::thread, Tiles::warp;
  static constexpr int kTotals = Rows::kRowsBytes;  // sums of g in shared memory, one per group of threads
  static constexpr int kLevelsBytes = kTotals + 4 * kGroups * K;

  using Decays = Channels[kTokens];  // one for each token

  __device__ __forceinline__ Channels const& totals(int other) const {
    return *reinterpret_cast<Channels const*>(smem + kTotals + 16 * (other * kQuads + quad()));
  }
  // The decay over the tokens of the groups [from, to).
  __device__ __forceinline__ void multiply_groups(Channels& r, int from, int to) const {
    Channels sum = {};
#pragma unroll 1
    for (int other = from; other < to; ++other) {
      float4 const all = *reinterpret_cast<float4 const*>(&totals(other));
      sum[0] += all.x, sum[1] += all.y, sum[2] += all.z, sum[3] += all.w;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) r[e] = exp2_approx(sum[e]);
  }
  static __device__ __forceinline__ void multiply(Channels& r, Channels const& factor) {
#pragma unroll
    for (int e = 0; e < 4; ++e) r[e] *= factor[e];
  }

  // The input keys are stored where k e^(G_last - G) will be: registers could not hold them in addition to decays and
  // queries.
  __device__ __forceinline__ Quad<T>& parked(int row) const {
    return *reinterpret_cast<Quad<T>*>(smem + Tiles::kRest + Folds::rest(row, quad()));
  }
  __device__ __forceinline__ void park(Registers& r) const {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if constexpr (sizeof(T) == 2) forget(r.k[i].bits.x), forget(r.k[i].bits.y);
      parked(first() + i) = r.k[i];
    }
  }
  // A batch of the thread's rows: no load is reordered with a store.
  static constexpr int kBatch = kTokens < 4 ? kTokens : kGating == Gating::kNone ? kTokens / 2 : 4;
  using Batch = Quad<T>[kBatch];
  __device__ __forceinline__ void unpark(Batch& r, int at) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) r[i] = parked(first() + at + i);
  }
  // Values computed from queries and decays are recomputed: kept between uses, they would fill the registers.
  __device__ __forceinline__ void forget_made(Registers& r, Decays& decays) const {
    if constexpr (sizeof(T) == 2 && kOutputs)
#pragma unroll
      for (int i = 0; i < kTokens; ++i) forget(r.q[i].bits.x), forget(r.q[i].bits.y);
    end_basic_block(this->chunk.tokens, decays);
  }

  // The diagonal blocks of M and P except the diagonal of P. All tiles of `keys`, `queries` and `inverse_keys` are
  // used, and free afterwards.
  template <class Sync>
  __device__ __forceinline__ void scores_by_levels(Registers& r, Decays& decays, Sync sync) const {
    for (int i = 16 * thread; i < Tiles::kBeta - Tiles::kP; i += 16 * kThreads)  // elements above the diagonals are 0
      *reinterpret_cast<uint4*>(smem + Tiles::kP + i) = make_uint4(0, 0, 0, 0);
    forget_made(r, decays);
    score_levels<0>(r, decays, sync);
    score_levels<2>(r, decays, sync);
  }

 private:
  template <int kLevel, class Sync>
  __device__ __forceinline__ void score_levels(Registers& r, Decays& decays, Sync sync) const {
#pragma unroll
    for (int at = 0; at < kTokens; at += kBatch) {
      Batch keys;
      unpark(keys, at);
      store_level<kLevel>(r, keys, decays, at);
      store_level<kLevel + 1>(r, keys, decays, at);
      forget_made(r, decays);
    }
    sync();
    for (int sub = warp(); sub < kSubs; sub += kWarps) multiply_levels<kLevel>(sub);
    sync();
  }

  // The position of a token among the later or the earlier ones of a level, and the token at a position.
  static __device__ __forceinline__ int place_of(int level, int token) {
    return token % 16 >> (level + 1) << level | token & (1 << level) - 1;
  }
  static __device__ __forceinline__ int token_of(int level, int position, bool later) {
    return position >> level << (level + 1) | later << level | position & (1 << level) - 1;
  }

  // Stores the thread's tokens, from `at` on, as rows of a level: runs of them are later or earlier.
  template <int kLevel>
  __device__ __forceinline__ void store_level(Registers const& r, Batch const& keys, Decays const& decays,
                                              int at) const {
    constexpr int kHalf = 1 << kLevel, kRun = kHalf < kBatch ? kHalf : kBatch;
#pragma unroll
    for (int start = at; start < at + kBatch; start += kRun)
      if (kHalf < kTokens ? start & kHalf : first() & kHalf)
        store_later<kLevel, kRun>(r, keys, decays, at, start);
      else
        store_earlier<kLevel, kRun>(keys, decays, at, start);
  }
  template <int kLevel, int kRun>
  __device__ __forceinline__ void store_later(Registers const& r, Batch const& keys, Decays const& decays, int at,
                                              int start) const {
    constexpr int kHalf = 1 << kLevel, kApart = kHalf / kTokens;  // groups per half
    unsigned char* const tile = kLevel % 2 ? this->queries() : this->keys();
    Channels all = {1, 1, 1, 1};
    if constexpr (kApart > 1) multiply_groups(all, group() / kApart * kApart, group());
#pragma unroll
    for (int i = start / kHalf * kHalf; i < start; ++i) multiply(all, decays[i]);
#pragma unroll
    for (int i = start; i < start + kRun; ++i) {
      int const row = first() / 16 * 16 + place_of(kLevel, first() + i);
      multiply(all, decays[i]);
      put(tile, row, keys[i - at], all);
      if constexpr (kOutputs)
        put(tile, row + 8, r.q[i], all);
      else
        Operands::put(tile + Image::offset(row + 8, quad()), Channels{});
    }
  }
  template <int kLevel, int kRun>
  __device__ __forceinline__ void store_earlier(Batch const& keys, Decays const& decays, int at, int start) const {
    constexpr int kHalf = 1 << kLevel, kApart = kHalf / kTokens;
    Channels all = {1, 1, 1, 1};
    if constexpr (kApart > 1) multiply_groups(all, group() + 1, group() / kApart * kApart + kApart);
    constexpr int kSpan = kHalf < kTokens ? kHalf : kTokens;  // the thread's part of the half
#pragma unroll
    for (int i = start / kSpan * kSpan + kSpan - 1; i >= start + kRun; --i) multiply(all, decays[i]);
#pragma unroll
    for (int i = start + kRun - 1; i >= start; --i) {
      int const row = first() / 16 * 16 + place_of(kLevel, first() + i) + kLevel % 2 * 8;
      put(this->inverse_keys(), row, keys[i - at], all);
      multiply(all, decays[i]);
    }
  }
  __device__ __forceinline__ void put(unsigned char* tile, int row, Quad<T> const& elements, Channels const& factor) const {
    Channels x;
    elements.unpack(x);
    multiply(x, factor);
    Operands::put(tile + Image::offset(row, quad()), x);
  }

  template <int kLevel>
  __device__ __forceinline__ void multiply_levels(int sub) const {
    using Layout = typename Image::Rows;
    uint32_t const at = rows(sub) + rows_by_lane<Layout>(lane());
    uint32_t const a[2] = {shared_address(this->keys()) + at, shared_address(this->queries()) + at};
    uint32_t const b = shared_address(this->inverse_keys()) + rows(sub) + Operands::template columns_by_lane<Layout>(lane());
    float r[2][4] = {};
#pragma unroll(kTokens == 16 && kGating == Gating::kNone ? K / Operands::kStep : 2)  // all would not fit the registers
    for (int step = 0; step < K / Operands::kStep; ++step) {
      typename Operands::A r_a[2];
      typename Operands::B r_b;
      Operands::load(r_a[0], Layout::advance(a[0], 2 * step));
      Operands::load(r_a[1], Layout::advance(a[1], 2 * step));
      ldmatrix<4>(r_b, Layout::advance(b, 2 * step));
      Operands::multiply(r[0], r_a[0], r_b[0], r_b[1]);
      Operands::multiply(r[1], r_a[1], r_b[2], r_b[3]);
    }
    place_level(r[0], kLevel, sub);
    place_level(r[1], kLevel + 1, sub);
  }
  // Stores those rows and columns of a product that belong to the same run of tokens. Their norms, which are in no
  // operand, are applied here.
  __device__ __forceinline__ void place_level(float const (&r)[4], int level, int sub) const {
    int const position = lane() / 4, row = 16 * sub + token_of(level, position, true);
    float const k_factor = k_scale(row) * floats(Tiles::kBeta)[row], q_factor = kOutputs ? q_scale(row) : 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int const other = Operands::column(lane(), e), column = 16 * sub + token_of(level, other, false);
      if (position >> level != other >> level) continue;
      floats(Tiles::kTriangle)[Tiles::element(row, column)] = r[e] * (k_factor * k_scale(column));
      if constexpr (kOutputs) this->put_score(row, column, r[2 + e] * (q_factor * k_scale(column)));
    }
  }
};
