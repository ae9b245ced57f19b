// What can be computed of a chunk without the state: its keys and queries are decayed, and handed to Triangle.
#pragma once
#include "kda/chunk.cuh"
#include "kda/token.cuh"
#include "kda/triangle.cuh"
#include "opaque.cuh"

// A thread owns four channels of C / kGroups tokens; kGroups threads share the channels. Exponents are in base 2 and
// count from the start of each 16 tokens ("sub-chunk"), so that a safe gate keeps them below 116.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kSafeGate, bool kNormalize,
          BetaGate kBetaGate, Gating kGating, class Operands = Bf16Operands>
struct Prep : Triangle<K, C, K / 4 * kGroups, Operands> {
  using Tiles = Triangle<K, C, K / 4 * kGroups, Operands>;
  using Chunk = ::Chunk<T, Gate, Beta>;
  using Tiles::floats, Tiles::image, Tiles::kElement, Tiles::kInImage, Tiles::kSubs, Tiles::kThreads, Tiles::kWarps;
  using Tiles::lane, Tiles::smem, Tiles::thread, Tiles::warp;
  using typename Tiles::Folds, typename Tiles::Image;
  static constexpr int kQuads = K / 4;
  static constexpr int kTokens = C / kGroups;  // of a thread
  static constexpr float kDown = Operands::kCentreFactor;
  static constexpr float kLargestExponent = 100;  // beyond, what is decayed most comes near bf16's subnormals
  static_assert(16 % kTokens == 0, "a thread's tokens lie in one sub-chunk");

  // Byte offsets in shared memory, behind Triangle's.
  static constexpr int kScales = Tiles::kTriangleBytes;  // of the rows of q, then of k
  static constexpr int kTotals = kScales + (kNormalize ? 8 * C : 0);  // sums of g, a group of threads each
  static constexpr int kFlags = kTotals + 4 * kGroups * K;            // a warp: some exponent is too large
  static constexpr int kBytes = kFlags + 4 * ceil_div(kWarps, 4) * 4;

  float scale;
  HeadGate<kGating> gate;
  Chunk chunk;

  __device__ __forceinline__ Prep(unsigned char* smem, uint32_t thread, float scale, HeadGate<kGating> gate,
                                  Chunk const& chunk, unsigned char* image)
      : Tiles{smem, thread, image}, scale(scale), gate(gate), chunk(chunk) {}

  __device__ __forceinline__ uint32_t quad() const { return thread % kQuads; }
  __device__ __forceinline__ int group() const { return int(thread / kQuads); }
  __device__ __forceinline__ int first() const { return group() * kTokens; }  // token

  // A thread's share of a chunk, as it lies in memory.
  struct Registers {
    Quad<T> q[kTokens], k[kTokens];
    Quad<Gate> g[kTokens];
    Beta beta;
  };
  using Channels = float[4];
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
    if constexpr (kNormalize) store_scales(r);
    sum_gates(gates, r);
    bool const there = int(thread) < chunk.tokens;
    if (thread < C) floats(Tiles::kBeta)[thread] = there ? beta_of<kBetaGate>(to_float(r.beta)) : 0;
    sync();
    Sums all{};
    sum_groups(all);
    if constexpr (!kSafeGate) flag_large_exponents(all);
    decay(r, gates, all);
    if (next) load(r, *next);
    sync();
    bool const large = !kSafeGate && exponents_are_large();
    this->scores(!large);
    if (large) diagonal_by_pairs();
    sync();
    this->solve();
    sync();
    this->fold_keys();
    this->fold_queries();
  }

  __device__ __forceinline__ void load(Registers& r, Chunk const& from) const {
    // Pointers that advance: products with the strides, kept for every chunk, would fill the registers.
    T const *q = from.q + first() * from.q_stride + 4 * quad(), *k = from.k + first() * from.k_stride + 4 * quad();
    Gate const* g = from.g + first() * from.g_stride + 4 * quad();
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      bool const there = first() + i < from.tokens;
      r.q[i] = load_quad(q, there);
      r.k[i] = load_quad(k, there);
      r.g[i] = load_quad(g, there);
      q += from.q_stride;
      k += from.k_stride;
      g += from.g_stride;
    }
    if (thread < C && int(thread) < from.tokens) r.beta = from.beta[thread * from.beta_stride];
  }

  __device__ __forceinline__ void sum_gates(Gates& gates, Registers const& r) const {
    Channels bias, sum = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) bias[e] = gate.bias_of(4 * quad() + e);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      bool const there = kGating == Gating::kNone || first() + i < chunk.tokens;
      Channels g;
      r.g[i].unpack(g);
#pragma unroll
      for (int e = 0; e < 4; ++e) gates[i][e] = sum[e] += there ? gate(g[e], bias[e]) : 0;
    }
    *reinterpret_cast<float4*>(smem + kTotals + 16 * thread) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }

  // The factors of the rows of q and k: scale, and the inverse lengths. Where the threads of a row are neighbours in a
  // warp they hold all of it; others read it again, a row a warp.
  __device__ __forceinline__ void store_scales(Registers const& r) const {
    if constexpr (32 % kQuads == 0) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        float const q = row_sum(r.q[i]), k = row_sum(r.k[i]);
        if (quad() == 0) store_scale(first() + i, q), store_scale(C + first() + i, k);
      }
    } else {
      for (int row = warp(); row < 2 * C; row += kWarps) {
        T const* x = row < C ? chunk.q + row * chunk.q_stride : chunk.k + (row - C) * chunk.k_stride;
        float sum = 0;
        if (row % C < chunk.tokens)
          for (int d = lane(); d < K; d += 32) sum += to_float(x[d]) * to_float(x[d]);
        sum = warp_sum(sum);
        if (lane() == 0) store_scale(row, sum);
      }
    }
  }
  static __device__ __forceinline__ float row_sum(Quad<T> const& row) {
    Channels x;
    row.unpack(x);
    float sum = (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
#pragma unroll
    for (int lanes = kQuads / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    return sum;
  }
  __device__ __forceinline__ void store_scale(int row, float sum) const {
    floats(kScales)[row] = rsqrtf(sum + kL2Epsilon) * (row < C ? scale : 1);
  }
  __device__ __forceinline__ float q_scale(int row) const { return kNormalize ? floats(kScales)[row] : scale; }
  __device__ __forceinline__ float k_scale(int row) const { return kNormalize ? floats(kScales)[C + row] : 1; }

  __device__ __forceinline__ void sum_groups(Sums& r) const {
    static_assert(kGroups >= kSubs, "a thread's tokens lie in one sub-chunk");
    int const mine = kSubs > 1 ? first() / 16 : 0;
#pragma unroll
    for (int other = 0; other < kGroups; ++other) {
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
  __device__ __forceinline__ void flag_large_exponents(Sums const& sums) const {
    bool const any = __any_sync(0xffffffff, is_large(sums.sub));
    if (lane() == 0) reinterpret_cast<int*>(smem + kFlags)[warp()] = any;
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
    float q_scales[kTokens], k_scales[kTokens];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      f.sub[e] = exp2_approx(sums.sub[e]);
      f.from_start[e] = kSubs > 1 ? exp2_approx(sums.earlier[e]) : 1;
      f.to_end[e] = kSubs > 1 ? exp2_approx(sums.later[e]) : 1;
      all[e] = f.from_start[e] * f.sub[e] * f.to_end[e];
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) q_scales[i] = q_scale(first() + i), k_scales[i] = k_scale(first() + i);
#pragma unroll
    for (int i = 0; i < kTokens; ++i)
      decay_token(first() + i, r.q[i], r.k[i], q_scales[i], k_scales[i], gates[i], sums.before, f);
    if (!kSafeGate && is_large(sums.sub)) rest_by_gates(f.to_end);
    if (group() == kGroups - 1) Image::store_decay(image, quad(), all);
  }
  __device__ __forceinline__ void decay_token(int row, Quad<T> const& q_row, Quad<T> const& k_row, float q_scale,
                                              float k_scale, Channels const& gates, Channels const& before,
                                              Factors const& f) const {
    Channels q, k, inverse, rest, sub_rest;
    q_row.unpack(q);
    k_row.unpack(k);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const exponent = before[e] + gates[e] - Operands::kCentre;
      float const up = exp2_approx(exponent), key = k[e] * k_scale;
      q[e] = q[e] * q_scale * up;
      k[e] = -key * up;
      inverse[e] = key * exp2_approx(-exponent);
      sub_rest[e] = inverse[e] * f.sub[e];
      rest[e] = inverse[e] * (f.sub[e] / kDown) * f.to_end[e];
    }
    uint32_t const at = Image::offset(row, quad());
    Operands::put(this->queries() + at, q);
    Operands::put(this->keys() + at, k);
    Operands::put(this->inverse_keys() + at, inverse);
    store_rest(row, rest, sub_rest);
    if constexpr (!kInImage) {
#pragma unroll
      for (int e = 0; e < 4; ++e) q[e] *= f.from_start[e] * kDown, k[e] *= f.from_start[e] * kDown;
      Operands::put(image + Image::kQueries + at, q);
      Operands::put(image + Image::kKeys + at, k);
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
        later[e] += there ? gate(g[e], gate.bias_of(4 * quad() + e)) : 0;
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
          qk += key * (there ? to_float(chunk.q[row * chunk.q_stride + d]) : 0);
          between[e] += there ? gate(to_float(chunk.g[column * chunk.g_stride + d]), gate.bias_of(d)) : 0;
        }
        kk = warp_sum(kk) * k_scale(column) * k_scale(row);
        qk = warp_sum(qk) * k_scale(column) * q_scale(row);
        place(row, column, kk, qk);
      }
    }
  }
  __device__ __forceinline__ void place(int row, int column, float kk, float qk) const {
    if (lane() == 0)
      floats(Tiles::kTriangle)[row * Tiles::kTriangleStride + column] =
          column < row ? kk * floats(Tiles::kBeta)[row] : 0;
    if (lane() == 1) Operands::put(smem + Tiles::kP + row * Tiles::Square::kRowBytes + kElement * column, qk);
  }
};
