// Scores between the tokens of a chunk: products of keys, and of queries with keys, with the decay between them.
#pragma once
#include "kda_backward/chunked/chunk_rows.cuh"
#include "kda_backward/slopes.cuh"

// base-2 exponent beyond which the most decayed values approach the subnormals of bf16
constexpr float kLargestExponent = 100;

// Scores in a warp's shared memory, in fp32: zeros above the diagonal, and for keys also on it.
struct Scores {
  static constexpr int kKeyStride = kChunk + 4;    // floats: transposed rows of keys start in different banks
  static constexpr int kQueryStride = kChunk + 8;  // floats: pairs of four rows are in different banks
  static constexpr int kQueries = kChunk * kKeyStride;
  static constexpr int kBytes = 4 * kChunk * (kKeyStride + kQueryStride);

  float* s_scores;

  __device__ __forceinline__ float* key_column(int column) const { return s_scores + column * kKeyStride; }
  __device__ __forceinline__ float* query_row(int row) const { return s_scores + kQueries + row * kQueryStride; }
  __device__ __forceinline__ void put_key(int row, int column, float x) const {
    key_column(column)[row] = column < row ? x : 0;
  }

  // Stores two adjacent accumulator tiles.
  __device__ __forceinline__ void put(Tile const (&kk)[2], Tile const (&qk)[2], int lane) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const row = lane / 4 + i % 2 * 8, column = i / 2 * 8 + lane % 4 * 2;
      float const *keys = &kk[i / 2][i % 2 * 2], *queries = &qk[i / 2][i % 2 * 2];
      put_key(row, column, keys[0]);
      put_key(row, column + 1, keys[1]);
      *reinterpret_cast<float2*>(query_row(row) + column) =
          make_float2(column <= row ? queries[0] : 0, column < row ? queries[1] : 0);
    }
  }
  // Loads the queries' scores as accumulators.
  __device__ __forceinline__ void queries(Tile (&r)[2], int lane) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int const row = lane / 4 + e % 2 * 8, column = e / 2 * 8 + lane % 4 * 2;
      float2 const pair = *reinterpret_cast<float2 const*>(query_row(row) + column);
      r[e / 2][e % 2 * 2] = pair.x, r[e / 2][e % 2 * 2 + 1] = pair.y;
    }
  }

  // If exponents are large: each pair of tokens is decayed by the gates between them.
  template <int K, class Rows, Gating kGating>
  __device__ __forceinline__ void put_pairs(Rows const& rows, RowFactors const& factors,
                                            HeadGate<kGating> const& gate, int lane) const {
    __syncwarp();
    for (int row = 0; row < kChunk; ++row) {
      bool const there = row < rows.tokens;
      float between[(K + 31) / 32] = {};
      for (int column = row; column >= 0; --column) {
        float kk = 0, qk = 0;
#pragma unroll
        for (int e = 0; e < (K + 31) / 32; ++e) {
          int const d = lane + 32 * e;
          if (d >= K || !there) continue;
          float const key = to_float(rows.k[column * rows.k_stride + d]) * exp2_approx(between[e]);
          kk += key * to_float(rows.k[row * rows.k_stride + d]);
          qk += key * to_float(rows.q[row * rows.q_stride + d]);
          between[e] += gate(to_float(rows.g[column * rows.g_stride + d]), gate.bias_of(d));
        }
        float const key = RowFactors::of_token(factors.k, column);
        kk = warp_sum(kk) * key * RowFactors::of_token(factors.k, row);
        qk = warp_sum(qk) * key * RowFactors::of_token(factors.q, row);
        if (lane == 0) put_key(row, column, kk);
        if (lane == 1) query_row(row)[column] = qk;
      }
    }
  }
};
