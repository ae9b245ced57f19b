// A chunk's rows in registers, and their lengths.
#pragma once
#include "kda/chunk.cuh"
#include "kda/token.cuh"
#include "kda/triangle.cuh"
#include "opaque.cuh"

// A thread owns four channels of C / kGroups tokens; kGroups threads share the channels. Queries are read for kOuts.
// kOnce: no other block reads the rows, and others come back for what they would displace in L2.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kNormalize, class Operands, bool kOuts,
          bool kOnce>
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
      r.g[i] = load_given_quad<kOnce>(g, there);
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
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        float const k = row_sum(r.k[i]);
        if (quad() == 0) store_scale(C + first() + i, k);
        if constexpr (kOutputs) {
          float const q = row_sum(r.q[i]);
          if (quad() == 0) store_scale(first() + i, q);
        }
      }
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
};
