// The gradients of a chunk of 16 tokens, for 16 kPairs channels per warp, from their sums over values.
#pragma once
#include "kda_backward/chunked/between.cuh"
#include "kda_backward/chunked/lengths.cuh"
#include "register.cuh"
#include "kda_backward/chunked/token_columns.cuh"

template <class T, class Gate, class Beta, int K, class Operands, class Columns, int kPairs, BetaGate kBetaGate,
          Gating kGating, bool kSafeGate>
struct Gradients {
  using Sums = ::Sums<Operands, kPairs>;
  using Within = ::Within<Operands>;
  static constexpr int kTiles = 2 * kPairs;

  int lane;
  float scale;
  int tokens;
  Columns columns;  // columns of exponents, and of dg

  // The inputs of a warp for its channels, and the destinations of their gradients.
  struct Inputs {
    View<T const> q, k;
    View<Gate const> g;
    HeadGate<kGating> gate;  // its bias is that of the first channel
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

  // Converts a value head's sums to gradients. dq and dk are summed over the group in `s_sums`; its last head stores
  // them, or, if rows are to be normalized, keeps them there, together with their projections onto q and k. `s_ends`:
  // space for one float per channel.
  template <bool kNormalize>
  __device__ __forceinline__ void finish_all(Sums& sums, Within const& within, Betas const& beta,
                                             RowPair const& lengths, Rows const& rows, float* s_sums, float* s_ends,
                                             bool first, bool last, RowPair& along) const {
    Inputs const& from = rows.from;
    Outputs const& to = rows.to;
    int at = lane;
    forget(at);  // recomputed row addresses occupy no registers while values are summed
    columns.put_exponents(from.g, from.gate, tokens);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      Channels x;
      Tile r_dq, r_dk, r_dg;
      fetch(x, from, t, at);
      bool const large = complete(x, t, lengths);
      finish(r_dq, r_dk, r_dg, s_ends + 8 * t, sums, t, within, x, beta, large);
      __syncwarp();  // all lanes have read the exponents
      columns.put(t, r_dg);
      if (kNormalize || !first || !last) {
        add_up(r_dq, s_sums + 256 * t, first, kNormalize || !last);
        add_up(r_dk, s_sums + 256 * t + 128, first, kNormalize || !last);
      }
      if (kNormalize && last) add_along(along, x.q, r_dq, x.k, r_dk);
      fence_registers(r_dq), fence_registers(r_dk);  // otherwise they are computed in each branch of the row stores
      if (!kNormalize && last) store(to.dq, t, r_dq, at), store(to.dk, t, r_dk, at);
      __syncwarp();  // loads of the next tile must not be hoisted: all at once they would not fit the registers
    }
    store_gates(from, to, s_ends);
  }
  template <class X>
  __device__ __forceinline__ void store(View<X> const& rows, int t, Tile const& r, int at) const {
    store_tile(rows.first + 8 * t, rows.stride, r, tokens, at);
  }
  // Converts dq and dk in `s_sums` to the gradients of rows before normalization.
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
      store(to.dq, t, r_dq, lane), store(to.dk, t, r_dk, lane);
    }
  }

  // fetch loads tile `t` of the rows from global memory; complete adds its exponents, and returns whether they are too
  // large.
  __device__ __forceinline__ void fetch(Channels& x, Inputs const& from, int t, int at) const {
    load_tile(x.q, from.q.first + 8 * t, from.q.stride, tokens, at);
    load_tile(x.k, from.k.first + 8 * t, from.k.stride, tokens, at);
  }
  __device__ __forceinline__ bool complete(Channels& x, int t, RowPair const& lengths) const {
    columns.get(x.gate, t);
#pragma unroll
    for (int e = 0; e < 4; ++e) x.q[e] *= lengths.q[e / 2], x.k[e] *= lengths.k[e / 2];
    x.total = columns.last(t);
    return !kSafeGate && __any_sync(0xffffffff, fminf(x.total.x, x.total.y) < -kLargestExponent);
  }
  // Converts the sums of tile `t` to gradients; those of g lack `s_ends`, and, except with split operands, their sum
  // over tokens.
  __device__ __forceinline__ void finish(Tile& dq, Tile& dk, Tile& dg, float* s_ends, Sums& sums, int t,
                                         Within const& within, Channels const& x, Betas const& beta,
                                         bool large) const {
    Tile up = {}, rest;
    float end = Operands::of_diagonal(sums.decay[t / 2], t % 2, lane) * exp2_approx(own(x.total));
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
      end += set_gate(dg, sums.q[t], sums.k[t], up, x, rest);
    }
    if (is_own()) s_ends[lane / 4] = end;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const own = scale * within.diagonal[e / 2];
      dq[e] = scale * sums.q[t][e] + own * x.k[e];
      dk[e] = sums.k[t][e] + up[e] + rest[e] + own * x.q[e];
    }
  }
  // The lane's own channel of a tile is lane / 4, in one of four lanes.
  __device__ __forceinline__ bool is_own() const { return lane % 4 == lane / 8; }
  __device__ __forceinline__ float own(float2 pair) const { return lane / 4 % 2 ? pair.y : pair.x; }
  // dg, before the sum over the tokens from each on: differences of incoming and outgoing contributions. Returns the
  // contribution of all tokens to the state after the chunk, for the lane's own channel.
  __device__ __forceinline__ float set_gate(Tile& dg, Tile const& q, Tile const& k, Tile const& up, Channels const& x,
                                            Tile const& rest) const {
    Tile given;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      given[e] = x.k[e] * rest[e];
      dg[e] = scale * x.q[e] * q[e] + x.k[e] * (k[e] - up[e]) - given[e];
    }
    return token_sum(given, lane);
  }
  // Adds to dg the contribution of the tokens before each to the state after the chunk.
  __device__ __forceinline__ void add_before(Tile& dg, Tile const& k, Tile const& rest) const {
    Tile given;
#pragma unroll
    for (int e = 0; e < 4; ++e) given[e] = k[e] * rest[e];
    to_next_token(given, lane);
    sum_up(given, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) dg[e] += given[e];
  }

  // Stores dg, column by column; if the kernel computes the gate, converted to the gradient of its input g.
  __device__ __forceinline__ void store_gates(Inputs const& from, Outputs const& to, float const* s_ends) const {
    float2 const end = reinterpret_cast<float2 const*>(s_ends)[columns.column()], bias = columns.bias_of(from.gate);
    float2 bias_sum = {}, rate_sum = {};
    columns.template for_each_token<!Operands::kSplit>(end, tokens, [&](int i, float2 dg) {
      if constexpr (kGating != Gating::kNone) {
        float2 const raw = load_pair(columns.row(from.g, i), true);
        GateSlopes const x = gate_slopes(from.gate, raw.x, bias.x), y = gate_slopes(from.gate, raw.y, bias.y);
        columns.add_to(rate_sum, make_float2(dg.x * x.rate, dg.y * y.rate));
        dg = make_float2(dg.x * x.input, dg.y * y.input);
        columns.add_to(bias_sum, dg);
      }
      store_pair(columns.row(to.dg, i), dg.x, dg.y);
    });
    if constexpr (kGating != Gating::kNone) {
      columns.store_total(to.gate_sums, bias_sum);
      columns.store_total(to.gate_sums + K, rate_sum);
    }
  }

  // Adds the contributions of previous value heads of the group, and stores the sum in `s_sum` if it is needed later.
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
