// What can be computed of a chunk without the state: its keys and queries are decayed, and handed to Triangle.
#pragma once
#include "kda/chunks/prep_rows.cuh"

// Exponents are in base 2 and count from the start of each 16 tokens ("sub-chunk"), so that a safe gate keeps them
// below 116. Without kOuts only the state is wanted: queries are not read, and the image has none.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kSafeGate, bool kNormalize,
          BetaGate kBetaGate, Gating kGating, class Operands = Bf16Operands, bool kOuts = true, bool kOnce = false>
struct Prep : PrepRows<T, Gate, Beta, K, C, kGroups, kNormalize, kGating, Operands, kOuts, kOnce> {
  using Tiles = Triangle<K, C, K / 4 * kGroups, Operands>;
  using Rows = PrepRows<T, Gate, Beta, K, C, kGroups, kNormalize, kGating, Operands, kOuts, kOnce>;
  using Tiles::floats, Tiles::image, Tiles::kElement, Tiles::kInImage, Tiles::kSubs, Tiles::kThreads, Tiles::kWarps;
  using Tiles::lane, Tiles::smem, Tiles::thread, Tiles::warp;
  using Rows::chunk, Rows::first, Rows::group, Rows::k_scale, Rows::kOutputs, Rows::kQuads, Rows::kTokens;
  using Rows::load, Rows::q_scale, Rows::quad;
  using typename Rows::Channels, typename Rows::Chunk, typename Rows::Registers;
  using typename Tiles::Folds, typename Tiles::Image;
  static constexpr float kDown = Operands::kCentreFactor;
  static constexpr float kLargestExponent = 100;  // beyond, what is decayed most comes near bf16's subnormals

  // Byte offsets in shared memory, behind those of the rows.
  static constexpr int kTotals = Rows::kRowsBytes;          // sums of g, a group of threads each
  static constexpr int kFlags = kTotals + 4 * kGroups * K;  // a warp: some exponent is too large
  static constexpr int kBytes = kFlags + 4 * ceil_div(kWarps, 4) * 4;

  HeadGate<kGating> gate;
  Channels bias;  // of the thread's channels

  __device__ __forceinline__ Prep(unsigned char* smem, uint32_t thread, float scale, HeadGate<kGating> gate,
                                  Chunk const& chunk, unsigned char* image)
      : Rows{{smem, thread, image}, scale, chunk}, gate(gate) {
    if constexpr (kGating != Gating::kNone)  // NVRTC before 13 would keep zeros in registers
#pragma unroll
      for (int e = 0; e < 4; ++e) bias[e] = gate.bias_of(4 * quad() + e);
  }

  using Gates = Channels[kTokens];  // exponents, summed from the thread's first token on
  // Sums of g over other tokens of the same channels.
  struct Sums {
    Channels before, sub, earlier, later;  // in the sub-chunk before the thread; of it; of the sub-chunks around it
  };

  // All of a chunk, by a block of kThreads threads, and to global memory.
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

  // All of a chunk's image. `r` holds the chunk, and afterwards `next`. `sync` is a barrier of the kThreads threads;
  // one is due before the image is read.
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
    decay(r, gates, all);
    if (next) load(r, *next);
    sync();
    if constexpr (!kSafeGate && kWarps > 1) large = exponents_are_large();
    this->template scores<kOutputs>(!large);
    if (large) diagonal_by_pairs();
    sync();
    this->solve();
    sync();
    if constexpr (kWarps == 1 && Operands::kBytes == 2)
      this->fold_keys_together();
    else
      this->fold_keys();
    if constexpr (kOutputs) this->fold_queries();
  }

  // In base 2, of one of the thread's channels.
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
      for (int e = 0; e < 4; ++e) gates[i][e] = sum[e] += decay_of(g[e], e);
    }
    *reinterpret_cast<float4*>(smem + kTotals + 16 * thread) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }

  __device__ __forceinline__ void sum_groups(Sums& r) const {
    static_assert(kGroups >= kSubs, "a thread's tokens lie in one sub-chunk");
    int const mine = kSubs > 1 ? first() / 16 : 0;
#pragma unroll
    for (int turn = 0; turn < kGroups; ++turn) {
      // Rows of sums that begin in any bank are read from the thread's own on: neighbours then read from neighbours.
      int const other = kQuads % 8 == 0 ? turn : (group() + turn) % kGroups;
      float4 const all = *reinterpret_cast<float4 const*>(smem + kTotals + 16 * (other * kQuads + quad()));
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
  // Whether a warp's own are, which it also tells the others.
  __device__ __forceinline__ bool flag_large_exponents(Sums const& sums) const {
    bool const any = __any_sync(0xffffffff, is_large(sums.sub));
    if (kWarps > 1 && lane() == 0) reinterpret_cast<int*>(smem + kFlags)[warp()] = any;
    return any;
  }
  __device__ __forceinline__ bool exponents_are_large() const {
    int any = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) any |= reinterpret_cast<int const*>(smem + kFlags)[i];
    return any != 0;
  }

  // What the decays of a thread's tokens are times.
  struct Factors {
    Channels sub, from_start, to_end;  // the sub-chunk's own; those of the sub-chunks before it, and after it
  };

  // All the ways in which the tokens are decayed, to shared memory.
  __device__ __forceinline__ void decay(Registers const& r, Gates const& gates, Sums const& sums) const {
    Factors f;
    Channels all;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      f.sub[e] = exp2_approx(sums.sub[e]);
      f.from_start[e] = kSubs > 1 ? exp2_approx(sums.earlier[e]) : 1;
      f.to_end[e] = kSubs > 1 ? exp2_approx(sums.later[e]) : 1;
      all[e] = f.from_start[e] * f.sub[e] * f.to_end[e];
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {  // factors of all rows, read before, would not fit the registers
      float const q_factor = kOutputs ? q_scale(first() + i) : 0, k_factor = k_scale(first() + i);
      decay_token(first() + i, r.q[kOutputs ? i : 0], r.k[i], q_factor, k_factor, gates[i], sums.before, f);
    }
    if (!kSafeGate && is_large(sums.sub)) rest_by_gates(f.to_end);
    if (group() == kGroups - 1) Image::store_decay(image, quad(), all);
  }
  __device__ __forceinline__ void decay_token(int row, Quad<T> const& q_row, Quad<T> const& k_row, float q_scale,
                                              float k_scale, Channels const& gates, Channels const& before,
                                              Factors const& f) const {
    Channels q, k, inverse, rest, sub_rest;
    if constexpr (kOutputs) q_row.unpack(q);
    k_row.unpack(k);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const exponent = (kTokens == 16 ? gates[e] : before[e] + gates[e]) - Operands::kCentre;
      float const up = exp2_approx(exponent), key = k[e] * k_scale;
      if constexpr (kOutputs) q[e] = q[e] * q_scale * up;
      k[e] = -key * up;
      inverse[e] = key * exp2_approx(-exponent);
      sub_rest[e] = inverse[e] * f.sub[e];
      rest[e] = inverse[e] * (f.sub[e] / kDown) * f.to_end[e];
    }
    uint32_t const at = Image::offset(row, quad());
    if constexpr (kOutputs) Operands::put(this->queries() + at, q);
    Operands::put(this->keys() + at, k);
    Operands::put(this->inverse_keys() + at, inverse);
    store_rest(row, rest, sub_rest);
    if constexpr (!kInImage) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        k[e] *= f.from_start[e] * kDown;
        if constexpr (kOutputs) q[e] *= f.from_start[e] * kDown;
      }
      Operands::put(image + Image::kKeys + at, k);
      if constexpr (kOutputs) Operands::put(image + Image::kQueries + at, q);
    }
  }
  __device__ __forceinline__ void store_rest(int row, Channels const& to_chunk, Channels const& to_sub) const {
    Operands::put(smem + Tiles::kRest + Folds::rest(row, quad()), to_chunk);
    if (kSubs > 1 && row < 16) Operands::put(smem + Tiles::kSubRest + Image::offset(row, quad()), to_sub);
  }
  // k e^(G_last - G) once more where G is large: sums so large have no room for small differences. From the gates
  // that follow a token it is exact.
  __device__ __forceinline__ void rest_by_gates(Channels const& to_end) const {
    Channels later = {};
#pragma unroll 1
    for (int row = first() / 16 * 16 + 15; row >= first(); --row) {
      bool const there = row < chunk.tokens;
      Channels k, g, to_sub;
      load_quad(chunk.k + row * chunk.k_stride + 4 * quad(), there).unpack(k);
      load_quad(chunk.g + row * chunk.g_stride + 4 * quad(), there).unpack(g);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        k[e] *= k_scale(row) * exp2_approx(later[e]);
        to_sub[e] = k[e] * kDown;
        k[e] *= to_end[e];
        later[e] += there ? decay_of(g[e], e) : 0;
      }
      if (row < first() + kTokens) store_rest(row, k, to_sub);
    }
  }

  // The diagonal blocks where exponents are large: each pair of tokens by the gates between them, a row a warp.
  __device__ __forceinline__ void diagonal_by_pairs() const {
    for (int row = warp(); row < C; row += kWarps) {
      int const start = row / 16 * 16;
      float between[(K + 31) / 32] = {};
      for (int column = start + 15; column > row; --column) place(row, column, 0, 0);
      for (int column = row; column >= start; --column) {
        float kk = 0, qk = 0;
#pragma unroll
        for (int e = 0; e < (K + 31) / 32; ++e) {
          int const d = lane() + 32 * e;
          bool const there = d < K && row < chunk.tokens;
          float const key = there ? to_float(chunk.k[column * chunk.k_stride + d]) * exp2_approx(between[e]) : 0;
          kk += key * (there ? to_float(chunk.k[row * chunk.k_stride + d]) : 0);
          if constexpr (kOutputs) qk += key * (there ? to_float(chunk.q[row * chunk.q_stride + d]) : 0);
          between[e] += there ? gate(to_float(chunk.g[column * chunk.g_stride + d]), gate.bias_of(d)) : 0;
        }
        kk = warp_sum(kk) * k_scale(column) * k_scale(row);
        if constexpr (kOutputs) qk = warp_sum(qk) * k_scale(column) * q_scale(row);
        place(row, column, kk, qk);
      }
    }
  }
  __device__ __forceinline__ void place(int row, int column, float kk, float qk) const {
    if (lane() == 0)
      floats(Tiles::kTriangle)[Tiles::element(row, column)] = column < row ? kk * floats(Tiles::kBeta)[row] : 0;
    if (kOutputs && lane() == 1)
      Operands::put(smem + Tiles::kP + row * Tiles::Square::kRowBytes + kElement * column, qk);
  }
};
