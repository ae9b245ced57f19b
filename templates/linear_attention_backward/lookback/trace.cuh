// The forward sweep over a thread's tokens, and the values of it that the backward sweep needs.
#pragma once
#include "linear_attention/tile.cuh"

// The mean of a state; 0 if n is 0.
__device__ __forceinline__ float mean(float s, float n) { return n == 0 ? 0 : s * rcp_approx(n); }

// A finite starting value of the mean: a mean that has become NaN is not used for the next sequence.
__device__ __forceinline__ float finite(float mean) { return fabsf(mean) < kInfinity ? mean : 0; }

// For each token: q d_o / n, the contribution of o to the gradient of s; how far the value moved the mean, and its
// distance to the new mean; n, if BETA requires it.
template <class Tile, bool BETA>
struct Trace {
  static constexpr bool kBeta = BETA;
  float given[Tile::L][Tile::V], moved[Tile::L][Tile::V], left[Tile::L][Tile::V], n[BETA ? Tile::L : 1][Tile::V];
};

// The state as the mean and the sum n of the weights.
template <int V>
struct Mean {
  float m[V], n[V];

  __device__ __forceinline__ explicit Mean(State<V> const& state) {
#pragma unroll
    for (int c = 0; c < V; ++c) {
      m[c] = mean(state.s[c], state.n[c]);
      n[c] = state.n[c];
    }
  }
};

// One token; returns its dq.
template <class T, class Trace, int V, class Vec>
__device__ __forceinline__ Vec advance(Trace& trace, int i, Mean<V>& state, float const (&beta)[V],
                                       float const (&weight)[V], Vec const& q, Vec const& v, Vec const& d_o) {
  Vec dq;
#pragma unroll
  for (int c = 0; c < V; ++c) {
    state.n[c] = fmaf(beta[c], state.n[c], weight[c]);
    float const inverse = rcp_approx(state.n[c]), upstream = element(d_o, c);
    float const error = element(v, c) - state.m[c], moved = weight[c] * inverse * error;
    state.m[c] += moved;
    trace.given[i][c] = element(q, c) * upstream * inverse;
    trace.moved[i][c] = moved;
    trace.left[i][c] = error - moved;
    if constexpr (Trace::kBeta) trace.n[i][c] = state.n[c];
    dq.at[c] = from_float<T>(upstream * state.m[c]);
  }
  return dq;
}

// The tensors of a thread's tokens, in registers or in shared memory.
template <class Tile>
struct Tensors {
  using Kept = typename Tile::Kept;
  Kept q, k, v, d_o;

  __device__ __forceinline__ explicit Tensors(unsigned char* smem)
      : q(smem + 2 * Kept::kBytes), k(smem), v(smem + Kept::kBytes), d_o(smem + 3 * Kept::kBytes) {}
};

// Advances the state from before a thread's tokens to after them, and returns it; computes dq.
template <class Tile, class Trace, class Weights, bool kVarlen>
__device__ __forceinline__ Mean<Tile::V> retrace(Trace& trace, Column<typename Tile::T> const& dq,
                                                 State<Tile::V> const& before, Weights& weights, Tensors<Tile>& x,
                                                 float const (&beta)[Tile::V], ThreadCoord const& at,
                                                 Sequences<kVarlen> const& sequences, States const& states) {
  Mean<Tile::V> state(before);
  if (at.begin >= at.end) return state;
  Span span = sequences.at(at.first);
  for (int begin = at.begin, end;; begin = end, span = sequences.at(span.end)) {
    end = span_end(span, at, begin);
    if (at.first + begin == span.begin) {
      State<Tile::V> first;
      states.begin(first, span.index, at.channel);
      state = Mean<Tile::V>(first);
    }
    if constexpr (kVarlen || !Weights::kKept) forget_all(x.q, x.k, x.v, x.d_o);
    auto* to = dq.token(at.first);
#pragma unroll
    for (int i = 0; i < Tile::L; ++i, to += dq.stride) {
      if (i < begin || i >= end) continue;
      if constexpr (!Weights::kKept) weights.compute(i, x.k);
      store_once(to, advance<typename Tile::T>(trace, i, state, beta, weights.of(i), x.q.get(i), x.v.get(i), x.d_o.get(i)));
    }
    if (!kVarlen || end == at.end) return state;
  }
}
