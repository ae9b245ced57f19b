// A chunk's rows in registers, and their lengths.
#pragma once
#include "kda/chunks/chunk.cuh"
#include "kda/token.cuh"
#include "kda/chunks/triangle.cuh"
#include "opaque.cuh"

// A thread owns four channels of C / kGroups tokens; kGroups threads share the channels. Queries are read for kOuts.
// kOnce: no other block reads the rows, and others come back for what they would displace in L2.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kNormalize, Gating kGating, class Operands,
          bool kOuts, bool kOnce>
struct PrepRows : Triangle<K, C, K / 4 * kGroups, Operands> {
  using Tiles = Triangle<K, C, K / 4 * kGroups, Operands>;
  using Chunk = ::Chunk<T, Gate, Beta>;
  using Channels = float[4];
  using Tiles::floats, Tiles::kWarps, Tiles::lane, Tiles::thread, Tiles::warp;
  static constexpr bool kOutputs = kOuts;
  static constexpr int kQuads = K / 4;
  static constexpr int kTokens = C / kGroups;  // of a thread
  static_assert(16 % kTokens == 0, "a thread's tokens lie in one sub-chunk");

  // Byte offsets in shared memory, behind Triangle's.
  static constexpr int kScales = Tiles::kTriangleBytes;  // of the rows of q, then of k
  static constexpr int kRowsBytes = kScales + (kNormalize ? 8 * C : 0);

  static constexpr float kOpen = kGating == Gating::kNone ? 0 : -kInfinity;  // what is given for g where nothing decays

  float scale;
  Chunk chunk;

  __device__ __forceinline__ uint32_t quad() const { return thread % kQuads; }
  __device__ __forceinline__ int group() const { return int(thread / kQuads); }
  __device__ __forceinline__ int first() const { return group() * kTokens; }  // token

  // A thread's share of a chunk, as it lies in memory.
  struct Registers {
    Quad<T> q[kOutputs ? kTokens : 1], k[kTokens];
    Quad<Gate> g[kTokens];
    Beta beta;
  };

  __device__ __forceinline__ void load(Registers& r, Chunk const& from) const {
    if (from.tokens >= C)  // of most chunks: nothing is tested, and nothing cleared
      load_rows<true>(r, from);
    else
      load_rows<false>(r, from);
  }
  template <bool kWhole>
  __device__ __forceinline__ void load_rows(Registers& r, Chunk const& from) const {
    // Pointers that advance: products with the strides, kept for every chunk, would fill the registers.
    T const *q = from.q + first() * from.q_stride + 4 * quad(), *k = from.k + first() * from.k_stride + 4 * quad();
    Gate const* g = from.g + first() * from.g_stride + 4 * quad();
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      bool const there = kWhole || first() + i < from.tokens;
      if constexpr (kOutputs) r.q[i] = load_given_quad<kOnce>(q, there);
      r.k[i] = load_given_quad<kOnce>(k, there);
      r.g[i] = there ? load_given_quad<kOnce>(g, true) : Quad<Gate>::filled(kOpen);
      q += from.q_stride;
      k += from.k_stride;
      g += from.g_stride;
      forget(q), forget(k), forget(g);  // two instructions a row
    }
    if (thread < C && (kWhole || int(thread) < from.tokens)) r.beta = from.beta[thread * from.beta_stride];
  }

  // The factors of the rows of q and k: scale, and the inverse lengths. Where the threads of a row are neighbours in a
  // warp they hold all of it; others read it again, a row a warp.
  __device__ __forceinline__ void store_scales(Registers const& r) const {
    if constexpr (32 % kQuads == 0) {
      store_scales_of(C, r.k);
      if constexpr (kOutputs) store_scales_of(0, r.q);
    } else {
      for (int row = (kOutputs ? 0 : C) + warp(); row < 2 * C; row += kWarps) {
        T const* x = row < C ? chunk.q + row * chunk.q_stride : chunk.k + (row - C) * chunk.k_stride;
        float sum = 0;
        if (row % C < chunk.tokens)
          for (int d = lane(); d < K; d += 32) sum += to_float(x[d]) * to_float(x[d]);
        sum = warp_sum(sum);
        if (lane() == 0) store_scale(row, sum);
      }
    }
  }
  // Of the rows of k or q, `offset` where their factors begin.
  __device__ __forceinline__ void store_scales_of(int offset, Quad<T> const (&rows)[kTokens]) const {
    float sums[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      Channels x;
      rows[i].unpack(x);
      sums[i] = (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
    }
    int const row = sum_rows<kTokens, kQuads / 2>(sums, 0);
    if (kTokens < kQuads && quad() % (kQuads / kTokens) != 0) return;  // whose share another has too
#pragma unroll
    for (int i = 0; i < ceil_div(kTokens, kQuads); ++i) store_scale(offset + first() + row + i, sums[i]);
  }
  // Sums over the threads of rows, of which each thread then has its share, from sums[0] on: in every round two threads
  // give each other half of what they have. Returns the first row of the share.
  template <int kRows, int kApart>
  __device__ __forceinline__ int sum_rows(float* sums, int row) const {
    if constexpr (kApart > 0) {
      constexpr int kHalf = kRows / 2;
      bool const upper = quad() & kApart;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        float const keep = upper ? sums[i + kHalf] : sums[i], give = upper ? sums[i] : sums[i + kHalf];
        sums[i] = keep + __shfl_xor_sync(0xffffffff, give, kApart);
      }
      if constexpr (kHalf == 0) sums[0] += __shfl_xor_sync(0xffffffff, sums[0], kApart);
      return sum_rows<kHalf == 0 ? 1 : kHalf, kApart / 2>(sums, kHalf > 0 && upper ? row + kHalf : row);
    }
    return row;
  }
  __device__ __forceinline__ void store_scale(int row, float sum) const {
    floats(kScales)[row] = rsqrtf(sum + kL2Epsilon) * (row < C ? scale : 1);
  }
  __device__ __forceinline__ float q_scale(int row) const { return kNormalize ? floats(kScales)[row] : scale; }
  __device__ __forceinline__ float k_scale(int row) const { return kNormalize ? floats(kScales)[C + row] : 1; }
};
