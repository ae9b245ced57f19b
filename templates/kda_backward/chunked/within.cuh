// The contributions of the tokens of a chunk to each other's keys and queries, with the decay between them.
#pragma once
#include "kda_backward/chunked/scores.cuh"
#include "kda_backward/chunked/sums.cuh"

// beta of the lane's tokens, as rows and as columns of the squares.
struct Betas {
  float rows[2], columns[2][2];

  Betas() = default;
  __device__ __forceinline__ Betas(float const* g_beta, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[i] = g_beta[lane / 4 + 8 * i];
      columns[i][0] = g_beta[8 * i + lane % 4 * 2];
      columns[i][1] = g_beta[8 * i + lane % 4 * 2 + 1];
    }
  }
};

// Eight channels of a chunk.
struct Channels {
  Tile q, k, gate;  // q and k: normalized if the kernel normalizes them; gate: base-2 exponents, cumulative
  float2 total;     // total of the gate
};

// The gradients of the chunk's two triangles, that of P and the negative one of the keys' products, strictly below the
// diagonal; and the diagonal of the queries, for the lane's rows, which has no decay: dg would otherwise be the small
// difference of its contributions to dq and dk.
template <class Operands>
struct Within {
  typename Operands::Block queries, keys, queries_t, keys_t;
  float diagonal[2];
  float scale;
  int lane;

  // Consumes the sums over values, which are overwritten.
  __device__ __forceinline__ Within(Square& d_queries, Square& d_keys, Betas const& beta, float of_queries,
                                    int this_lane)
      : scale(of_queries), lane(this_lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      diagonal[half] =
          __shfl_sync(0xffffffff, of_diagonal(d_queries, half, lane), lane / 4 * 4 + lane / 8) * beta.rows[half];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int const row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2, e = i % 4;
      float const beta_column = beta.columns[i / 4][i % 2];
      d_queries[i / 4][e] *= column < row ? beta_column : 0;
      d_keys[i / 4][e] *= column < row ? -beta.rows[i / 2 % 2] * beta_column : 0;
    }
    Operands::pack(queries, d_queries[0], d_queries[1]);
    Operands::pack(keys, d_keys[0], d_keys[1]);
    Operands::transpose(queries_t, queries);
    Operands::transpose(keys_t, keys);
  }

  // Adds to q and k, which must then be decayed at their end, and to up, which comes from later tokens. If exponents
  // are `large`, each pair of tokens is decayed by the gates between them.
  __device__ __forceinline__ void add(Tile& q, Tile& k, Tile& up, Channels const& x, bool large) const {
    if (large) {
      decay(q, k, x);
      for_each_token(x, [&](Channels const& other, int token) { add_token(q, k, up, x, other, token); });
    } else {
      add_products(q, k, up, x);
    }
  }
  static __device__ __forceinline__ void decay(Tile& q, Tile& k, Channels const& x) {
#pragma unroll
    for (int e = 0; e < 4; ++e) q[e] *= exp2_approx(x.gate[e]), k[e] *= exp2_approx(x.gate[e]);
  }
  __device__ __forceinline__ void add_products(Tile& q, Tile& k, Tile& up, Channels const& x) const {
    Tile q_in, k_in, k_up;
    typename Operands::Half r_b;
    start(q_in, k_in, k_up, x);
    Operands::pack_transposed(r_b, k_up);
    Operands::multiply(q, queries, r_b);
    Operands::multiply(k, keys, r_b);
    Operands::pack_transposed(r_b, k_in);
    Operands::multiply(up, keys_t, r_b);
    Operands::pack_transposed(r_b, q_in);
    Operands::multiply(up, queries_t, r_b);
    end(q, k, up, x);
  }
  // Decayed to the reference point of exponents, and from there to the ends of the sums.
  __device__ __forceinline__ void start(Tile& q_in, Tile& k_in, Tile& k_up, Channels const& x) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const exponent = x.gate[e] - Operands::kCentre, in = exp2_approx(exponent);
      q_in[e] = scale * x.q[e] * in, k_in[e] = x.k[e] * in, k_up[e] = x.k[e] * exp2_approx(-exponent);
    }
  }
  static __device__ __forceinline__ void end(Tile& q, Tile& k, Tile& up, Channels const& x) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const exponent = x.gate[e] - Operands::kCentre, in = exp2_approx(exponent);
      q[e] *= in, k[e] *= in, up[e] *= exp2_approx(-exponent);
    }
  }

  // Calls `each` in every lane with a token's channels, where the query is scaled.
  template <class Each>
  __device__ __forceinline__ void for_each_token(Channels const& x, Each each) const {
#pragma unroll 1
    for (int pair = 0; pair < kChunk / 2; ++pair)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        int const token = 2 * pair + odd;
        Channels other = of_token(x, token);
#pragma unroll
        for (int e = 0; e < 4; ++e) other.q[e] *= scale;
        each(other, token);
      }
  }
  // Contributions of one token to those after it, and of those before it to it.
  __device__ __forceinline__ void add_token(Tile& q, Tile& k, Tile& up, Channels const& x, Channels const& other,
                                            int token) const {
    add_column(q, queries, other.k, x, other, token);
    add_column(k, keys, other.k, x, other, token);
    add_column(up, keys_t, other.k, x, other, token);
    add_column(up, queries_t, other.q, x, other, token);
  }
  // A token's elements, broadcast to all tokens.
  __device__ __forceinline__ Channels of_token(Channels const& x, int token) const {
    Channels r = {};
    int const source = token % 8 * 4 + lane % 4;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      auto const pick = [&](Tile const& t) {
        float const low = __shfl_sync(0xffffffff, t[c], source), high = __shfl_sync(0xffffffff, t[2 + c], source);
        return token < 8 ? low : high;
      };
      r.q[c] = r.q[2 + c] = pick(x.q);
      r.k[c] = r.k[2 + c] = pick(x.k);
      r.gate[c] = r.gate[2 + c] = pick(x.gate);
    }
    return r;
  }
  // r += column `token` of A times that token's `value`, with the decay between them.
  __device__ __forceinline__ void add_column(Tile& r, typename Operands::Block const& r_a, Tile const& value,
                                             Channels const& x, Channels const& other, int token) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float const factor = Operands::of_column(r_a, half, token, lane);
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e)
        r[e] += factor * value[e] * exp2_approx(-fabsf(x.gate[e] - other.gate[e]));
    }
  }
};
