// The gradients of a chunk of 16 tokens, for 16 kPairs channels a warp: no warp needs another, and none shared memory.
#pragma once
#include "beside.cuh"
#include "image.cuh"
#include "lengths.cuh"
#include "math.cuh"
#include "prepare.cuh"
#include "register.cuh"
#include "slab.cuh"
#include "slopes.cuh"
#include "tile.cuh"

// kInFlight: steps of 16 values whose loads are on their way at once.
template <class T, class Gate, class Beta, int K, int V, int kPairs, int kInFlight, BetaGate kBetaGate, Gating kGating,
          bool kSafeGate>
struct Gradients {
  using Image = ::Image<K>;
  using Square = float[2][4];  // [tokens, tokens]
  static constexpr int kTiles = 2 * kPairs;
  static constexpr int kSteps = V / 16;

  // Sums over values. Rows are tokens, but channels of `decay`, of which the diagonal counts.
  struct Sums {
    Tile q[kTiles];      // do Sᵀ
    Tile k[kTiles];      // y Sᵀ
    Tile rest[kTiles];   // e dSᵀ
    Tile decay[kPairs];  // S dSᵀ, of each tile's own channels
    Square queries;      // do eᵀ
    Square keys;         // y eᵀ
  };
  // Strict triangles of the chunk as operands A, and transposed; and the diagonal of the queries, of the lane's rows,
  // which knows no decay: dg would otherwise be a small difference of what it gives to dq and to dk.
  struct Triangles {
    uint32_t queries[4], keys[4], queries_t[4], keys_t[4];
    float diagonal[2];
  };

  // beta of the lane's tokens, as rows and as columns of the squares.
  struct Betas {
    float rows[2], columns[2][2];
  };

  int lane;
  float scale;
  int tokens;

  __device__ __forceinline__ void load_betas(Betas& r, float const* g_beta) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      r.rows[i] = g_beta[lane / 4 + 8 * i];
      r.columns[i][0] = g_beta[8 * i + lane % 4 * 2];
      r.columns[i][1] = g_beta[8 * i + lane % 4 * 2 + 1];
    }
  }

  // `r_errors`: the image's block of that name. What `beside` makes takes the place of what was stored.
  template <Made kMade>
  __device__ __forceinline__ void sum_values(Sums& r, Scanned const& from, View<T const> const& d_o, uint4 r_errors,
                                             Beside<T, K, kPairs, kMade> const& beside) const {
    int steps = kSteps;
    if (kInFlight == 1) forget(steps);  // few steps would be unrolled all the same, and spill
#pragma unroll kInFlight
    for (int step = 0; step < steps; ++step) {
      uint32_t r_do[4], r_e[4];
      load_values(r_do, d_o.first + 16 * step, d_o.stride, tokens, lane);
      uint4 const r_r = from.r[32 * step], y = from.y[32 * step];
      Square e = {};
      mma_m16n8k16<bf16>(e[0], {r_errors.x, r_errors.y, r_errors.z, r_errors.w}, {r_r.x, r_r.y});
      mma_m16n8k16<bf16>(e[1], {r_errors.x, r_errors.y, r_errors.z, r_errors.w}, {r_r.z, r_r.w});
      pack_rows(r_e, e[0], e[1]);
      uint32_t const r_y[4] = {y.x, y.y, y.z, y.w};
      multiply(r.queries, r_do, {r_e[0], r_e[2], r_e[1], r_e[3]});
      multiply(r.keys, r_y, {r_e[0], r_e[2], r_e[1], r_e[3]});
      typename Beside<T, K, kPairs, kMade>::Values r_beside;
      beside.load(r_beside, step);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        uint4 s = from.states[32 * (pair * kSteps + step)], d = from.gradients[32 * (pair * kSteps + step)];
        if (kMade == Made::kState) s = beside.make(s, pair, r_beside);
        if (kMade == Made::kGradient) d = beside.make(d, pair, r_beside);
        multiply(r.q + 2 * pair, r_do, {s.x, s.y, s.z, s.w});
        multiply(r.k + 2 * pair, r_y, {s.x, s.y, s.z, s.w});
        multiply(r.rest + 2 * pair, r_e, {d.x, d.y, d.z, d.w});
        mma_m16n8k16<bf16>(r.decay[pair], {s.x, 0, s.y, 0}, {d.x, d.y});
        mma_m16n8k16<bf16>(r.decay[pair], {0, s.z, 0, s.w}, {d.z, d.w});
      }
    }
  }
  // The same for chunk `index` of its sequence, of which kSpan share what the scans left.
  template <int kSpan>
  __device__ __forceinline__ void sum_chunk(Sums& r, Scanned const& from, View<T const> const& d_o,
                                            unsigned char const* image, int channel, int index) const {
    uint4 const r_errors = reinterpret_cast<uint4 const*>(image + Image::kErrors)[lane];
    if (kSpan == 2 && index % 2) {
      Beside<T, K, kPairs, Made::kState> const beside(neighbour(from, d_o, image, -1), channel, lane);
      sum_values(r, from, d_o, r_errors, beside);
    } else if (kSpan == 2 && tokens > kChunk) {
      Beside<T, K, kPairs, Made::kGradient> const beside(neighbour(from, d_o, image, 1), channel, lane);
      sum_values(r, from, d_o, r_errors, beside);
    } else {
      sum_values(r, from, d_o, r_errors, Beside<T, K, kPairs, Made::kNothing>{});
    }
  }
  __device__ __forceinline__ Neighbour<T> neighbour(Scanned const& from, View<T const> const& d_o,
                                                    unsigned char const* image, int step) const {
    constexpr int kBlocks = 2 * V;  // uint4 of a tensor of tokens and values, of one chunk
    return {image + step * Image::kBytes,
            from.r + step * kBlocks,
            from.y + step * kBlocks,
            {d_o.first + step * kChunk * d_o.stride, d_o.stride},
            tokens - step * kChunk};
  }
  // Two tiles of columns: r[i] += A B[i].
  static __device__ __forceinline__ void multiply(Tile* r, uint32_t const (&r_a)[4], uint32_t const (&r_b)[4]) {
    mma_m16n8k16<bf16>(r[0], r_a, {r_b[0], r_b[1]});
    mma_m16n8k16<bf16>(r[1], r_a, {r_b[2], r_b[3]});
  }

  // The gradients of the chunk's two triangles: that of P, and minus that of the keys' products.
  __device__ __forceinline__ void triangles(Triangles& r, Sums& sums, Betas const& beta) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      r.diagonal[half] =
          __shfl_sync(0xffffffff, of_diagonal(sums.queries, half), lane / 4 * 4 + lane / 8) * beta.rows[half];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int const row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2, e = i % 4;
      float const beta_column = beta.columns[i / 4][i % 2];
      sums.queries[i / 4][e] *= column < row ? beta_column : 0;
      sums.keys[i / 4][e] *= column < row ? -beta.rows[i / 2 % 2] * beta_column : 0;
    }
    pack_rows(r.queries, sums.queries[0], sums.queries[1]);
    pack_rows(r.keys, sums.keys[0], sums.keys[1]);
    transpose(r.queries_t, r.queries);
    transpose(r.keys_t, r.keys);
  }

  // What a warp reads of its channels, and where their gradients go.
  struct Inputs {
    View<T const> q, k;
    View<Gate const> g;
    HeadGate<kGating> gate;  // its bias that of the first channel
  };
  struct Outputs {
    View<T> dq, dk;
    View<Gate> dg;
    float* gate_sums;  // [2, K], see GateSums; null unless the kernel computes the gate
  };

  struct Rows {
    Inputs from;
    Outputs to;
  };

  // Turns a value head's sums into gradients. dq and dk are added up over the group in `s_sums`; its last head writes
  // them, or leaves them there, and how much of them lies along q and k, where rows are to be normalised.
  template <bool kNormalize>
  __device__ __forceinline__ void finish_all(Sums& sums, Triangles const& r, Betas const& beta, RowPair const& lengths,
                                             Rows const& rows, float* s_sums, bool first, bool last,
                                             RowPair& along) const {
    Inputs const& from = rows.from;
    Outputs const& to = rows.to;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      Channels x;
      Tile r_dq, r_dk, r_dg;
      bool const large = load(x, from, t, lengths);
      finish(r_dq, r_dk, r_dg, sums, t, r, x, beta, large);
      add_up(r_dq, s_sums + 256 * t, first, kNormalize || !last);
      add_up(r_dk, s_sums + 256 * t + 128, first, kNormalize || !last);
      if constexpr (kGating != Gating::kNone) before_gate(r_dg, from, t, to.gate_sums + 8 * t);
      store(to.dg, t, r_dg);
      if (kNormalize && last) add_along(along, x.q, r_dq, x.k, r_dk);
      if (!kNormalize && last) store(to.dq, t, r_dq), store(to.dk, t, r_dk);
      __syncwarp();  // the next tile's loads stay behind it: all at once they would not fit the registers
    }
  }
  template <class X>
  __device__ __forceinline__ void store(View<X> const& rows, int t, Tile const& r) const {
    store_tile(rows.first + 8 * t, rows.stride, r, tokens, lane);
  }
  // The same of dq and dk in `s_sums`, with respect to rows that were normalised.
  __device__ __forceinline__ void finish_normalised(Rows const& rows, float const* s_sums, RowPair const& lengths,
                                                    RowPair const& along) const {
    Inputs const& from = rows.from;
    Outputs const& to = rows.to;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      Tile r_dq, r_dk;
      float const* s_sum = s_sums + 256 * t;
      before_normalising(r_dq, from.q.first + 8 * t, from.q.stride, s_sum, lengths.q, along.q, tokens, lane);
      before_normalising(r_dk, from.k.first + 8 * t, from.k.stride, s_sum + 128, lengths.k, along.k, tokens, lane);
      store(to.dq, t, r_dq), store(to.dk, t, r_dk);
    }
  }

  // Eight channels of a chunk.
  struct Channels {
    Tile q, k, gate;  // q and k: of unit length where that is the kernel's to make; gate: exponents of 2, summed
    float2 total;     // of the gate
  };
  // Tile `t` of the rows. Returns whether exponents are too large.
  __device__ __forceinline__ bool load(Channels& x, Inputs const& from, int t, RowPair const& lengths) const {
    load_tile(x.q, from.q.first + 8 * t, from.q.stride, tokens, lane);
    load_tile(x.k, from.k.first + 8 * t, from.k.stride, tokens, lane);
    load_tile(x.gate, from.g.first + 8 * t, from.g.stride, tokens, lane);
    decay_exponents(x.gate, from.gate, 8 * t, tokens, lane);
    sum_up(x.gate, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) x.q[e] *= lengths.q[e / 2], x.k[e] *= lengths.k[e / 2];
    x.total = last_token(x.gate, lane);
    return !kSafeGate && __any_sync(0xffffffff, fminf(x.total.x, x.total.y) < -kLargestExponent);
  }
  // Turns the sums of tile `t` into gradients.
  __device__ __forceinline__ void finish(Tile& dq, Tile& dk, Tile& dg, Sums& sums, int t, Triangles const& r,
                                         Channels const& x, Betas const& beta, bool large) const {
    Tile up = {}, rest;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums.k[t][e] *= -beta.rows[e / 2];
      rest[e] = sums.rest[t][e] * beta.rows[e / 2] * exp2_approx((e % 2 ? x.total.y : x.total.x) - x.gate[e]);
    }
    if (large)
      within_by_pairs(sums.q[t], sums.k[t], up, r, x);
    else
      within(sums.q[t], sums.k[t], up, r, x);
    Tile product;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const within = scale * r.diagonal[e / 2];
      dq[e] = scale * sums.q[t][e];
      dk[e] = sums.k[t][e] + up[e] + rest[e];
      dg[e] = x.q[e] * dq[e] + x.k[e] * (sums.k[t][e] - up[e] - rest[e]);
      product[e] = x.k[e] * rest[e];
      dq[e] += within * x.k[e], dk[e] += within * x.q[e];
    }
    float2 const last = token_sum(product), decayed = diagonal(sums.decay[t / 2], t % 2);
    sum_down(dg, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      dg[e] += e % 2 ? last.y + decayed.y * exp2_approx(x.total.y) : last.x + decayed.x * exp2_approx(x.total.x);
  }

  // The gradient of the gate becomes that of what is given for g; `g_sums`: the tile's channels.
  __device__ __forceinline__ void before_gate(Tile& dg, Inputs const& from, int t, float* g_sums) const {
    Tile raw, rate;
    load_tile(raw, from.g.first + 8 * t, from.g.stride, tokens, lane);
    float2 const bias = bias_pair(from.gate, 8 * t, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      GateSlopes const slopes = gate_slopes(from.gate, raw[e], e % 2 ? bias.y : bias.x);
      bool const there = lane / 4 + e / 2 * 8 < tokens;
      rate[e] = there ? dg[e] * slopes.rate : 0;
      dg[e] = there ? dg[e] * slopes.input : 0;
    }
    float2 const bias_sum = token_sum(dg), rate_sum = token_sum(rate);
    if (lane < 4) {
      reinterpret_cast<float2*>(g_sums)[lane] = bias_sum;
      reinterpret_cast<float2*>(g_sums + K)[lane] = rate_sum;
    }
  }

  // What the chunk's tokens give to each other; up: by later tokens. All is decayed where it ends.
  __device__ __forceinline__ void within(Tile& q, Tile& k, Tile& up, Triangles const& r, Channels const& x) const {
    Tile q_in, k_in, k_up;
    uint32_t r_b[2];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const in = exp2_approx(x.gate[e]);
      q_in[e] = scale * x.q[e] * in, k_in[e] = x.k[e] * in, k_up[e] = x.k[e] * exp2_approx(-x.gate[e]);
    }
    pack_columns(r_b, k_up);
    mma_m16n8k16<bf16>(q, r.queries, r_b);
    mma_m16n8k16<bf16>(k, r.keys, r_b);
    pack_columns(r_b, k_in);
    mma_m16n8k16<bf16>(up, r.keys_t, r_b);
    pack_columns(r_b, q_in);
    mma_m16n8k16<bf16>(up, r.queries_t, r_b);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const in = exp2_approx(x.gate[e]);
      q[e] *= in, k[e] *= in, up[e] *= exp2_approx(-x.gate[e]);
    }
  }
  // The same where exponents are large: each pair of tokens by the gates between them.
  __device__ __forceinline__ void within_by_pairs(Tile& q, Tile& k, Tile& up, Triangles const& r,
                                                  Channels const& x) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) q[e] *= exp2_approx(x.gate[e]), k[e] *= exp2_approx(x.gate[e]);
#pragma unroll 1
    for (int pair = 0; pair < kChunk / 2; ++pair)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        int const token = 2 * pair + odd;
        Channels other = of_token(x, token);
#pragma unroll
        for (int e = 0; e < 4; ++e) other.q[e] *= scale;
        add_token(q, r.queries, other.k, x, other, token);
        add_token(k, r.keys, other.k, x, other, token);
        add_token(up, r.keys_t, other.k, x, other, token);
        add_token(up, r.queries_t, other.q, x, other, token);
      }
  }
  // A token's elements for all tokens.
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
  // r += column `token` of A times that token's `value`, decayed by what lies between.
  __device__ __forceinline__ void add_token(Tile& r, uint32_t const (&r_a)[4], Tile const& value, Channels const& x,
                                            Channels const& other, int token) const {
    int const source = lane / 4 * 4 + token % 8 / 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t const low = __shfl_sync(0xffffffff, r_a[half], source);
      uint32_t const high = __shfl_sync(0xffffffff, r_a[2 + half], source);
      uint32_t const both = token < 8 ? low : high;
      float const factor = token % 2 ? unpack_hi<bf16>(both) : unpack_lo<bf16>(both);
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e)
        r[e] += factor * value[e] * exp2_approx(-fabsf(x.gate[e] - other.gate[e]));
    }
  }

  // Element (row, row) of a square, row = lane / 4 + 8 half, in the one of the row's four lanes that holds it.
  __device__ __forceinline__ float of_diagonal(Square const& square, int half) const {
    return lane / 4 % 2 ? square[half][2 * half + 1] : square[half][2 * half];
  }
  // The diagonal of the channels' products, of the lane's two channels; `half`: which rows of the tile are its columns.
  __device__ __forceinline__ float2 diagonal(Tile const& r, int half) const {
    float const even = half ? r[2] : r[0], odd = half ? r[3] : r[1];
    int const channel = lane % 4 * 2;  // held by the lane of that row and of column pair channel / 2
    return make_float2(__shfl_sync(0xffffffff, even, channel * 4 + channel / 2),
                       __shfl_sync(0xffffffff, odd, (channel + 1) * 4 + channel / 2));
  }

  // Adds what the value heads of the group before this one gave, and leaves the sum in `s_sum` if it is to be kept.
  __device__ __forceinline__ void add_up(Tile& r, float* s_sum, bool first, bool keep) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!first) r[e] += s_sum[32 * e + lane];
      if (keep) s_sum[32 * e + lane] = r[e];
    }
  }

  // The diagonal of y eᵀ is dbeta.
  __device__ __forceinline__ void store_beta(View<Beta> const& dbeta, View<Beta const> const& beta,
                                             Square const& keys) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const token = lane / 4 + 8 * half;
      float const value = of_diagonal(keys, half);
      if (lane % 4 != lane / 8 || token >= tokens) continue;
      float const slope =
          kBetaGate == BetaGate::kNone ? 1 : beta_slope<kBetaGate>(to_float(beta.first[token * beta.stride]));
      dbeta.first[token * dbeta.stride] = from_float<Beta>(value * slope);
    }
  }
};
