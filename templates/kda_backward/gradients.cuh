// The gradients of a chunk of 16 tokens, for 16 kPairs channels a warp, from their sums over values.
#pragma once
#include "between.cuh"
#include "lengths.cuh"
#include "slab.cuh"
#include "slopes.cuh"

template <class T, class Gate, class Beta, int K, class Operands, int kPairs, BetaGate kBetaGate, Gating kGating,
          bool kSafeGate>
struct Gradients {
  using Sums = ::Sums<Operands, kPairs>;
  using Within = ::Within<Operands>;
  static constexpr int kTiles = 2 * kPairs;

  int lane;
  float scale;
  int tokens;

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
  __device__ __forceinline__ void finish_all(Sums& sums, Within const& within, Betas const& beta,
                                             RowPair const& lengths, Rows const& rows, float* s_sums, bool first,
                                             bool last, RowPair& along) const {
    Inputs const& from = rows.from;
    Outputs const& to = rows.to;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      Channels x;
      Tile r_dq, r_dk, r_dg;
      bool const large = load(x, from, t, lengths);
      finish(r_dq, r_dk, r_dg, sums, t, within, x, beta, large);
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
  __device__ __forceinline__ void finish(Tile& dq, Tile& dk, Tile& dg, Sums& sums, int t, Within const& within,
                                         Channels const& x, Betas const& beta, bool large) const {
    Tile up = {}, rest;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums.k[t][e] *= -beta.rows[e / 2];
      rest[e] = sums.rest[t][e] * beta.rows[e / 2] * exp2_approx((e % 2 ? x.total.y : x.total.x) - x.gate[e]);
    }
    if constexpr (Operands::kSplit) {
      Between<Operands>{within}.add(sums.q[t], sums.k[t], up, dg, x, large);
      add_before(dg, x.k, rest);
    } else {
      within.add(sums.q[t], sums.k[t], up, x, large);
      set_gate(dg, sums.q[t], sums.k[t], up, x, rest);
    }
    float2 const decayed = Operands::diagonal(sums.decay[t / 2], t % 2, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const own = scale * within.diagonal[e / 2];
      dg[e] += e % 2 ? decayed.y * exp2_approx(x.total.y) : decayed.x * exp2_approx(x.total.x);
      dq[e] = scale * sums.q[t][e] + own * x.k[e];
      dk[e] = sums.k[t][e] + up[e] + rest[e] + own * x.q[e];
    }
  }
  // dg of all but what passes the whole chunk: as differences of what tokens take and give, summed from each on.
  __device__ __forceinline__ void set_gate(Tile& dg, Tile const& q, Tile const& k, Tile const& up, Channels const& x,
                                           Tile const& rest) const {
    Tile given;  // to what follows the chunk
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      dg[e] = scale * x.q[e] * q[e] + x.k[e] * (k[e] - up[e] - rest[e]);
      given[e] = x.k[e] * rest[e];
    }
    float2 const all = token_sum(given);
    sum_down(dg, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) dg[e] += e % 2 ? all.y : all.x;
  }
  // To dg, what the tokens before each give to what follows the chunk.
  __device__ __forceinline__ void add_before(Tile& dg, Tile const& k, Tile const& rest) const {
    Tile given;
#pragma unroll
    for (int e = 0; e < 4; ++e) given[e] = k[e] * rest[e];
    to_next_token(given, lane);
    sum_up(given, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) dg[e] += given[e];
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
      float const value = of_diagonal(keys, half, lane);
      if (lane % 4 != lane / 8 || token >= tokens) continue;
      float const slope =
          kBetaGate == BetaGate::kNone ? 1 : beta_slope<kBetaGate>(to_float(beta.first[token * beta.stride]));
      dbeta.first[token * dbeta.stride] = from_float<Beta>(value * slope);
    }
  }
};
