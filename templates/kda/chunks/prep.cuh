// The part of a chunk that can be computed without the state: its keys and queries are decayed, and passed to Triangle.
#pragma once
#include "kda/chunks/levels.cuh"

// Exponents are in base 2, relative to the start of each 16 tokens ("sub-chunk"), so that a safe gate keeps them below
// 116. If larger gates exceed that range, tiles are computed from decays only (PrepLevels). Without kOuts only the
// state is computed: queries are not read, and the image contains none.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kSafeGate, bool kNormalize,
          BetaGate kBetaGate, Gating kGating, class Operands = Bf16Operands, bool kOuts = true, bool kOnce = false>
struct Prep : PrepLevels<T, Gate, Beta, K, C, kGroups, kNormalize, kGating, Operands, kOuts, kOnce> {
  using Tiles = Triangle<K, C, K / 4 * kGroups, Operands>;
  using Levels = PrepLevels<T, Gate, Beta, K, C, kGroups, kNormalize, kGating, Operands, kOuts, kOnce>;
  using Tiles::floats, Tiles::image, Tiles::kElement, Tiles::kInImage, Tiles::kSubs, Tiles::kThreads, Tiles::kWarps;
  using Tiles::lane, Tiles::smem, Tiles::thread, Tiles::warp;
  using Levels::chunk, Levels::first, Levels::group, Levels::k_scale, Levels::kOutputs, Levels::kQuads;
  using Levels::kTokens, Levels::kTotals, Levels::load, Levels::multiply, Levels::q_scale, Levels::quad, Levels::totals;
  using typename Levels::Channels, typename Levels::Chunk, typename Levels::Registers;
  using typename Tiles::Folds, typename Tiles::Image;
  static constexpr float kDown = Operands::kCentreFactor;
  static constexpr int kBatch = Levels::kBatch;
  // beyond this exponent, the most decayed values approach the subnormals of bf16
  static constexpr float kLargestExponent = 100;
  // Whether each warp processes all channels of all tokens.
  static constexpr bool kAlike = kWarps == 1 || (kSubs == 1 && 32 % kQuads == 0);

  // Byte offsets in shared memory, after those of the rows.
  static constexpr int kFlags = Levels::kLevelsBytes;  // one per warp: some exponent is too large
  static constexpr int kBytes = kFlags + 4 * ceil_div(kWarps, 4) * 4;

  HeadGate<kGating> gate;
  Channels bias;  // bias of the thread's channels

  __device__ __forceinline__ Prep(unsigned char* smem, uint32_t thread, float scale, HeadGate<kGating> gate,
                                  Chunk const& chunk, unsigned char* image)
      : Levels{{{smem, thread, image}, scale, chunk}}, gate(gate) {
    if constexpr (kGating != Gating::kNone)  // NVRTC before 13 would keep zeros in registers
#pragma unroll
      for (int e = 0; e < 4; ++e) bias[e] = gate.bias_of(4 * quad() + e);
  }

  static constexpr bool kSummed = kSafeGate || kNormalize;
  using Gates = Channels[kTokens];  // base-2 exponents; kSummed: cumulative from the thread's first token on
  // Sums of g over other tokens of the same channels.
  struct Sums {
    // within the sub-chunk, before the thread; over the sub-chunk; over the sub-chunks before and after it
    Channels before, sub, earlier, later;
  };

  // Computes an entire chunk with a block of kThreads threads, and writes it to global memory.
  __device__ __forceinline__ void write_image(unsigned char* g_image) const {
    Registers r;
    load(r, chunk);
    prepare(r, nullptr, [] { __syncthreads(); });
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < ceil_div(Image::kUsedBytes / 16, kThreads); ++pass) {
      uint32_t const i = 16 * (thread + pass * kThreads);
      if (i < Image::kUsedBytes) *reinterpret_cast<uint4*>(g_image + i) = *reinterpret_cast<uint4 const*>(image + i);
    }
  }

  // Computes the image of a chunk. `r` contains the chunk, and afterwards `next`. `sync` is a barrier of the kThreads
  // threads; another is required before the image is read.
  template <class Sync>
  __device__ __forceinline__ void prepare(Registers& r, Chunk const* next, Sync sync) const {
    Gates gates;
    if constexpr (kNormalize) this->store_scales(r);
    sum_gates(gates, r);
    bool const there = int(thread) < chunk.tokens;
    if (thread < C) floats(Tiles::kBeta)[thread] = there ? beta_of<kBetaGate>(to_float(r.beta)) : 0;
    sync();
    Sums all{};
    sum_groups(all);
    bool large = !kSafeGate && flag_large_exponents(all);
    if constexpr (!kSafeGate && !kAlike) {
      sync();
      large = exponents_are_large();
    }
    if (large)
      decay_by_levels(r, gates, all, sync);
    else
      decay(r, gates, all);
    if (next) load(r, *next);
    sync();
    this->template scores<kOutputs>(!large);
    sync();
    this->solve();
    sync();
    if constexpr (kWarps == 1 && Operands::kBytes == 2)
      this->fold_keys_together();
    else
      this->fold_keys();
    if constexpr (kOutputs) this->fold_queries();
  }

  // The decay of one of the thread's channels, in base 2.
  __device__ __forceinline__ float decay_of(float g, int e) const {
    if constexpr (kGating == Gating::kNone)
      return gate(g, 0);
    else
      return gate(g, bias[e]);
  }
  __device__ __forceinline__ void sum_gates(Gates& gates, Registers const& r) const {
    Channels sum = {};
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      Channels g;
      r.g[i].unpack(g);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        gates[i][e] = decay_of(g[e], e);
        sum[e] += gates[i][e];
        if constexpr (kSummed) gates[i][e] = sum[e];
      }
    }
    *reinterpret_cast<float4*>(smem + kTotals + 16 * thread) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }

  __device__ __forceinline__ void sum_groups(Sums& r) const {
    static_assert(kGroups >= kSubs, "a thread's tokens lie in one sub-chunk");
    int const mine = kSubs > 1 ? first() / 16 : 0;
#pragma unroll
    for (int turn = 0; turn < kGroups; ++turn) {
      // Rows of sums may start in any bank, so each thread starts reading at its own row: adjacent threads then read
      // adjacent rows.
      int const other = kQuads % 8 == 0 ? turn : (group() + turn) % kGroups;
      float4 const all = *reinterpret_cast<float4 const*>(&totals(other));
      Channels const sum = {all.x, all.y, all.z, all.w};
      int const sub = other * kTokens / 16;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (sub == mine) r.sub[e] += sum[e];
        if (sub == mine && other < group()) r.before[e] += sum[e];
        if (sub < mine) r.earlier[e] += sum[e];
        if (sub > mine) r.later[e] += sum[e];
      }
    }
  }

  static __device__ __forceinline__ bool is_large(Channels const& sum) {
    return fminf(fminf(sum[0], sum[1]), fminf(sum[2], sum[3])) < -kLargestExponent;
  }
  // Whether a warp's exponents are too large; sets the flag that the other warps read.
  __device__ __forceinline__ bool flag_large_exponents(Sums const& sums) const {
    bool const any = __any_sync(0xffffffff, is_large(sums.sub));
    if (!kAlike && lane() == 0) reinterpret_cast<int*>(smem + kFlags)[warp()] = any;
    return any;
  }
  __device__ __forceinline__ bool exponents_are_large() const {
    int any = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) any |= reinterpret_cast<int const*>(smem + kFlags)[i];
    return any != 0;
  }

  // Factors of the decays of a thread's tokens.
  struct Factors {
    Channels sub, from_start, to_end;  // decay over its sub-chunk; over the sub-chunks before it, and after it
  };
  __device__ __forceinline__ Factors factors(Sums const& sums) const {
    Factors f;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      f.sub[e] = exp2_approx(sums.sub[e]);
      f.from_start[e] = kSubs > 1 ? exp2_approx(sums.earlier[e]) : 1;
      f.to_end[e] = kSubs > 1 ? exp2_approx(sums.later[e]) : 1;
    }
    return f;
  }
  __device__ __forceinline__ void store_decay(Factors const& f) const {
    Channels all;
#pragma unroll
    for (int e = 0; e < 4; ++e) all[e] = f.from_start[e] * f.sub[e] * f.to_end[e];
    if (group() == kGroups - 1) Image::store_decay(image, quad(), all);
  }

  // Stores all decayed forms of the tokens to shared memory.
  __device__ __forceinline__ void decay(Registers const& r, Gates const& gates, Sums const& sums) const {
    Factors const f = factors(sums);
    Channels sum;
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = kTokens == 16 ? 0 : sums.before[e];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {  // factors of all rows, if read in advance, would not fit the registers
      float const q_factor = kOutputs ? q_scale(first() + i) : 0, k_factor = k_scale(first() + i);
      Channels exponents;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        exponents[e] = sum[e] + gates[i][e];
        if constexpr (!kSummed) sum[e] = exponents[e];
      }
      decay_token(first() + i, r.q[kOutputs ? i : 0], r.k[i], q_factor, k_factor, exponents, f);
    }
    store_decay(f);
  }
  __device__ __forceinline__ void decay_token(int row, Quad<T> const& q_row, Quad<T> const& k_row, float q_scale,
                                              float k_scale, Channels const& exponents, Factors const& f) const {
    Channels q, k, inverse, rest, sub_rest;
    if constexpr (kOutputs) q_row.unpack(q);
    k_row.unpack(k);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const exponent = exponents[e] - Operands::kCentre;
      float const up = exp2_approx(exponent), key = k[e] * k_scale;
      if constexpr (kOutputs) q[e] = q[e] * q_scale * up;
      k[e] = -key * up;
      inverse[e] = key * exp2_approx(-exponent);
      sub_rest[e] = inverse[e] * f.sub[e];
      rest[e] = inverse[e] * (f.sub[e] / kDown) * f.to_end[e];
    }
    Operands::put(this->inverse_keys() + Image::offset(row, quad()), inverse);
    store_rest(row, rest, sub_rest);
    store_rows(row, q, k, f.from_start);
  }
  // Keys and queries decayed from the start of their sub-chunk, and those of the image.
  __device__ __forceinline__ void store_rows(int row, Channels& q, Channels& k, Channels const& from_start) const {
    uint32_t const at = Image::offset(row, quad());
    if constexpr (kOutputs) Operands::put(this->queries() + at, q);
    Operands::put(this->keys() + at, k);
    if constexpr (!kInImage) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        k[e] *= from_start[e] * kDown;
        if constexpr (kOutputs) q[e] *= from_start[e] * kDown;
      }
      Operands::put(image + Image::kKeys + at, k);
      if constexpr (kOutputs) Operands::put(image + Image::kQueries + at, q);
    }
  }
  __device__ __forceinline__ void store_rest(int row, Channels const& to_chunk, Channels const& to_sub) const {
    Operands::put(smem + Tiles::kRest + Folds::rest(row, quad()), to_chunk);
    if (kSubs > 1 && row < 16) Operands::put(smem + Tiles::kSubRest + Image::offset(row, quad()), to_sub);
  }

  // Computes the decayed keys and queries if exponents are large, and the scores of the diagonal blocks. `gates` are
  // overwritten by decays.
  template <class Sync>
  __device__ __forceinline__ void decay_by_levels(Registers& r, Gates& gates, Sums const& sums, Sync sync) const {
    if constexpr (kNormalize) load(r, chunk);  // loaded again: with norms, rows kept until here would be spilled
    this->park(r);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      Channels g;
      if constexpr (kNormalize) r.g[i].unpack(g);
#pragma unroll
      for (int e = 0; e < 4; ++e) gates[i][e] = exp2_approx(kNormalize ? decay_of(g[e], e) : gates[i][e]);
      if (kGating != Gating::kNone && i % 4 == 3) this->forget_made(r, gates);
    }
    this->scores_by_levels(r, gates, sync);
    Factors const f = factors(sums);
    store_decay(f);
    Channels up;
    float diagonal[kTokens];  // diagonal of P
#pragma unroll
    for (int e = 0; e < 4; ++e) up[e] = exp2_approx(sums.before[e]) / kDown;
#pragma unroll
    for (int at = 0; at < kTokens; at += kBatch) {
      typename Levels::Batch keys;
      this->unpark(keys, at);
#pragma unroll
      for (int i = at; i < at + kBatch; ++i) {
        Channels q, k;
        if constexpr (kOutputs) r.q[i].unpack(q);
        keys[i - at].unpack(k);
        if constexpr (kOutputs && Levels::kTogether) diagonal[i] = this->product(q, k);
        multiply(up, gates[i]);
        float const q_factor = kOutputs ? q_scale(first() + i) : 0, k_factor = -k_scale(first() + i);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if constexpr (kOutputs) q[e] *= q_factor * up[e];
          k[e] *= k_factor * up[e];
        }
        store_rows(first() + i, q, k, f.from_start);
      }
    }
    this->forget_made(r, gates);
    rest_by_levels(gates, f.to_end);
    if constexpr (kOutputs)
      this->store_sums(diagonal, chunk.q, chunk.k, chunk.q_stride, chunk.k_stride,
                       [&](int row, float x) { this->put_score(row, row, x * (q_scale(row) * k_scale(row))); });
  }
  // k e^(G_last - G), from the last token on.
  __device__ __forceinline__ void rest_by_levels(Gates const& decays, Channels const& to_end) const {
    constexpr int kSubGroups = kGroups / kSubs;
    Channels down = {1, 1, 1, 1};
    if constexpr (kSubGroups > 1)
      this->multiply_groups(down, group() + 1, group() / kSubGroups * kSubGroups + kSubGroups);
#pragma unroll
    for (int at = kTokens - kBatch; at >= 0; at -= kBatch) {
      typename Levels::Batch keys;
      this->unpark(keys, at);
#pragma unroll
      for (int i = at + kBatch - 1; i >= at; --i) {
        Channels k, to_sub;
        keys[i - at].unpack(k);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          k[e] *= k_scale(first() + i) * down[e];
          to_sub[e] = k[e] * kDown;
          k[e] *= to_end[e];
        }
        store_rest(first() + i, k, to_sub);
        multiply(down, decays[i]);
      }
    }
  }
};
