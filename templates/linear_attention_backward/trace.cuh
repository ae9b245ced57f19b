// The way forward through a thread's tokens, kept for the way back: how far each value was from the mean m = s / n of
// those before it, and 1 / n.
#pragma once
#include "linear_attention/tile.cuh"

// The mean of a state; that of nothing is 0.
__device__ __forceinline__ float mean(float s, float n) { return n == 0 ? 0 : s * rcp_approx(n); }

template <class Tile>
struct Trace {
  float error[Tile::L][Tile::V], inverse[Tile::L][Tile::V];
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

// The tensors of a thread's tokens, in registers or in shared memory.
template <class Tile>
struct Tensors {
  using Kept = typename Tile::Kept;
  Kept q, k, v, d_o;

  __device__ __forceinline__ explicit Tensors(unsigned char* smem)
      : q(smem + 2 * Kept::kBytes), k(smem), v(smem + Kept::kBytes), d_o(smem + 3 * Kept::kBytes) {}
};

// From the state before a thread's tokens to the one behind them, which it returns; dq on the way.
template <class Tile, class Weights, bool kVarlen>
__device__ __forceinline__ Mean<Tile::V> retrace(Trace<Tile>& trace, Column<typename Tile::T> const& dq,
                                                 State<Tile::V> const& before, Weights& weights, Tensors<Tile>& x,
                                                 float const (&beta)[Tile::V], Place const& at,
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
    if constexpr (kVarlen || !Weights::kKept) forget_all(x.k, x.v, x.d_o);
    auto* to = dq.token(at.first);
#pragma unroll
    for (int i = 0; i < Tile::L; ++i, to += dq.stride) {
      if (i < begin || i >= end) continue;
      if constexpr (!Weights::kKept) weights.compute(i, x.k);
      auto const v = x.v.get(i), d_o = x.d_o.get(i);
      typename Tile::Vec out;
#pragma unroll
      for (int c = 0; c < Tile::V; ++c) {
        float const weight = weights.of(i)[c], error = to_float(v.at[c]) - state.m[c];
        state.n[c] = fmaf(beta[c], state.n[c], weight);
        float const inverse = rcp_approx(state.n[c]);
        state.m[c] = fmaf(weight * inverse, error, state.m[c]);
        trace.error[i][c] = error;
        trace.inverse[i][c] = inverse;
        out.at[c] = from_float<typename Tile::T>(to_float(d_o.at[c]) * state.m[c]);
      }
      store_once(to, out);
    }
    if (!kVarlen || end == at.end) return state;
  }
}
