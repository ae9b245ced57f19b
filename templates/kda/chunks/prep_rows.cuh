// A chunk's rows in registers, and their norms.
#pragma once
#include "kda/chunks/chunk.cuh"
#include "kda/token.cuh"
#include "kda/chunks/triangle.cuh"
#include "opaque.cuh"

// A thread owns four channels of C / kGroups tokens; kGroups threads share the channels. Queries are read if kOuts.
// kOnce: no other block reads the rows, so that they should not evict data that is reused from L2.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kNormalize, Gating kGating, class Operands,
          bool kOuts, bool kOnce>
struct PrepRows : Triangle<K, C, K / 4 * kGroups, Operands> {
  using Tiles = Triangle<K, C, K / 4 * kGroups, Operands>;
  using Chunk = ::Chunk<T, Gate, Beta>;
  using Channels = float[4];
  using Tiles::floats, Tiles::kWarps, Tiles::lane, Tiles::thread, Tiles::warp;
  static constexpr bool kOutputs = kOuts;
  static constexpr int kQuads = K / 4;
  static constexpr int kTokens = C / kGroups;  // tokens per thread
  static constexpr bool kTogether = 32 % kQuads == 0;  // the threads of a row are within a warp
  static_assert(16 % kTokens == 0, "a thread's tokens lie in one sub-chunk");

  // Byte offsets in shared memory, after those of Triangle.
  static constexpr int kScales = Tiles::kTriangleBytes;  // scales of the rows of q, then of k
  static constexpr int kRowsBytes = kScales + (kNormalize ? 8 * C : 0);

  static constexpr float kOpen = kGating == Gating::kNone ? 0 : -kInfinity;  // input g without decay

  float scale;
  Chunk chunk;

  __device__ __forceinline__ uint32_t quad() const { return kGroups == 1 ? thread : thread % kQuads; }
  __device__ __forceinline__ int group() const { return kGroups == 1 ? 0 : int(thread / kQuads); }
  __device__ __forceinline__ int first() const { return group() * kTokens; }  // the thread's first token

  // A thread's share of a chunk, in memory layout.
  struct Registers {
    Quad<T> q[kOutputs ? kTokens : 1], k[kTokens];
    Quad<Gate> g[kTokens];
    Beta beta;
  };

  __device__ __forceinline__ void load(Registers& r, Chunk const& from) const {
    if (from.tokens >= C)  // true for most chunks: no tests, and nothing to zero
      load_rows<true>(r, from);
    else
      load_rows<false>(r, from);
  }
  template <bool kWhole>
  __device__ __forceinline__ void load_rows(Registers& r, Chunk const& from) const {
    // Pointers are advanced: products with the strides, kept for every chunk, would fill the registers.
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
      forget(q), forget(k), forget(g);  // two instructions per row
    }
    if (thread < C && (kWhole || int(thread) < from.tokens)) r.beta = from.beta[thread * from.beta_stride];
  }

  // The factors of the rows of q and k: scale, and the inverse norms.
  __device__ __forceinline__ void store_scales(Registers const& r) const {
    store_lengths(r.k, chunk.k, chunk.k_stride, [&](int row, float sum) { store_scale(C + row, sum); });
    if constexpr (kOutputs)
      store_lengths(r.q, chunk.q, chunk.q_stride, [&](int row, float sum) { store_scale(row, sum); });
  }
  template <class Store>
  __device__ __forceinline__ void store_lengths(Quad<T> const (&rows)[kTokens], T const* g, int64_t stride,
                                                Store store) const {
    float sums[kTokens];
    if constexpr (kTogether)
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        Channels x;
        rows[i].unpack(x);
        sums[i] = product(x, x);
      }
    store_sums(sums, g, g, stride, stride, store);
  }
  static __device__ __forceinline__ float product(Channels const& x, Channels const& y) {
    return (x[0] * y[0] + x[1] * y[1]) + (x[2] * y[2] + x[3] * y[3]);
  }
  // The dot product of every row of a with that of b: `store(row, sum)` is called by one thread. `sums`: the thread's
  // partial sums, if the threads of a row are adjacent in a warp. Otherwise the rows are read again, one row per warp.
  template <class Store>
  __device__ __forceinline__ void store_sums(float (&sums)[kTokens], T const* g_a, T const* g_b, int64_t a_stride,
                                             int64_t b_stride, Store store) const {
    if constexpr (kTogether) {
      int const row = sum_rows<kTokens, kQuads / 2>(sums, 0);
      if (kTokens < kQuads && quad() % (kQuads / kTokens) != 0) return;  // another thread has the same share
#pragma unroll
      for (int i = 0; i < ceil_div(kTokens, kQuads); ++i) store(first() + row + i, sums[i]);
    } else {
      for (int row = warp(); row < C; row += kWarps) {
        float sum = 0;
        if (row < chunk.tokens)
          for (int d = lane(); d < K; d += 32)
            sum += to_float(g_a[row * a_stride + d]) * to_float(g_b[row * b_stride + d]);
        sum = warp_sum(sum);
        if (lane() == 0) store(row, sum);
      }
    }
  }
  // Sums over the threads of rows, after which each thread has its share, from sums[0] on: in every round two threads
  // exchange half of their sums. Returns the first row of the share.
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
