// The backward sweep over a thread's tokens: the gradients of s, and of n at constant mean, from the last token to the
// first.
#pragma once
#include "linear_attention_backward/lookback/trace.cuh"

// Gradients of the state after or before a token: s holds that of s, n that of n at constant mean.
template <int V>
using Gradient = State<V>;

// Converts the gradient of n at constant s to the one at constant mean m.
template <int V>
__device__ __forceinline__ void follow_mean(Gradient<V>& gradient, float const (&m)[V]) {
#pragma unroll
  for (int c = 0; c < V; ++c) gradient.n[c] = fmaf(gradient.s[c], m[c], gradient.n[c]);
}

// Converts the gradient of n at one constant mean to that at another.
template <int V>
__device__ __forceinline__ void shift(Gradient<V>& gradient, float const (&from)[V], float const (&to)[V]) {
#pragma unroll
  for (int c = 0; c < V; ++c) gradient.n[c] = fmaf(gradient.s[c], to[c] - from[c], gradient.n[c]);
}

// Tiles exchange gradients of n at constant s, which have the same meaning for all tiles; a block, which has the mean m
// before its tile, uses n at constant m. In fp64 the magnitudes never differ enough for either to lose precision.
__device__ __forceinline__ Carry leave(State<1> const& gradient, float m) {
  return {gradient.s[0], gradient.n[0] - double(gradient.s[0]) * m};
}
__device__ __forceinline__ State<1> find(Carry const& carry, float m) {
  return {{float(carry.s)}, {float(carry.n + carry.s * m)}};
}

// One token: the gradients of s and n including it, and of its weight; the gradients of the state after it become those
// of the state before it.
template <int V>
struct Step {
  float s[V], n[V], weight[V];

  template <class Trace>
  __device__ __forceinline__ Step(Gradient<V>& state, Trace const& trace, int i, float const (&beta)[V]) {
#pragma unroll
    for (int c = 0; c < V; ++c) {
      s[c] = state.s[c] + trace.given[i][c];
      n[c] = fmaf(-s[c], trace.moved[i][c], state.n[c]);
      weight[c] = fmaf(s[c], trace.left[i][c], state.n[c]);
      state.s[c] = beta[c] * s[c];
      state.n[c] = beta[c] * n[c];
    }
  }
};

// A thread's part of the backward sweep. FLOOR: floor of the keys; LAST: the problem has gradients of final states.
template <class Tile, class Trace, int FLOOR, class Weights, bool kVarlen, bool LAST>
struct Reverse {
  static constexpr int V = Tile::V;
  using T = typename Tile::T;
  using Vec = typename Tile::Vec;
  Trace const& trace;
  Weights& weights;
  Tensors<Tile>& x;
  float const (&beta)[V];
  ThreadCoord const& at;
  Sequences<kVarlen> const& sequences;
  States const& initial;    // states of the forward pass
  States const& gradients;  // gradients of final states, where sequences start in this sweep, and of initial states

  // The gradients before the thread's tokens if nothing follows them, and whether a sequence ends among them, so that
  // nothing does. `m`: the mean after them.
  __device__ __forceinline__ Summary<V> summarize(float const (&m)[V]) const {
    Summary<V> found = {{}, false};
    walk(found, m, [](int, Step<V> const&) {}, [](Span const&, Gradient<V> const&) {});
    return found;
  }

  // Writes dk, dv and the gradients of initial states, and adds to that of β. `after`: the gradients after the thread's
  // tokens; `n`: before them.
  __device__ __forceinline__ void apply(Gradient<V> const& after, float const (&m)[V], float const (&n)[V],
                                        Column<T> const& dk, Column<T> const& dv, float (&d_beta)[V]) const {
    Summary<V> found = {after, false};
    // the gradient of n including the next token: that of β is the sum of its products with the previous n
    float later[V] = {};
    walk(
        found, m,
        [&](int i, Step<V> const& step) {
          if constexpr (!Weights::kKept) weights.compute(i, x.k);
          store_once(dk.token(at.first + i), key_gradient(weights.of(i), step.weight, x.k.get(i)));
          store_once(dv.token(at.first + i), value_gradient(weights.of(i), step.s));
          if constexpr (Trace::kBeta) {
            add(d_beta, trace.n[i], later);
#pragma unroll
            for (int c = 0; c < V; ++c) later[c] = step.n[c];
          }
        },
        [&](Span const& span, Gradient<V> gradient) {
          State<V> first;
          initial.begin(first, span.index, at.channel);
          add(d_beta, first.n, later);
#pragma unroll
          for (int c = 0; c < V; ++c) {
            later[c] = 0;
            gradient.n[c] = fmaf(-gradient.s[c], mean(first.s[c], first.n[c]), gradient.n[c]);
          }
          if (gradients.final) gradients.end(gradient, span.index, at.channel);
        });
    add(d_beta, n, later);
  }

 private:
  // Iterates from the last token to the first: `token` processes each, `first` the gradients before the first token of
  // a sequence.
  template <class Token, class First>
  __device__ __forceinline__ void walk(Summary<V>& found, float const (&m)[V], Token token, First first) const {
    for (int end = at.end, begin; end > at.begin; end = begin) {  // runs once, except if sequences meet
      Span const span = sequences.at(at.first + end - 1);
      begin = max(at.begin, span.begin - at.first);
      bool const ends = at.first + end == span.end;
      if (ends) {
        gradients.begin(found.sum, span.index, at.channel);
        found.cut = true;
        if (LAST && end == at.end) follow_mean(found.sum, m);
      }
      if constexpr (kVarlen || !Weights::kKept) forget_all(x.k, x.v);
#pragma unroll
      for (int i = Tile::L - 1; i >= 0; --i) {
        if (i < begin || i >= end) continue;
        if (kVarlen && LAST && ends && i == end - 1 && end != at.end) follow_mean_of(found.sum, i);
        token(i, Step<V>(found.sum, trace, i, beta));
      }
      if (at.first + begin == span.begin) {
        first(span, found.sum);
        found.sum = {};
      }
      if constexpr (!kVarlen) return;
    }
  }

  // The mean after token i is its value minus the stored error.
  __device__ __forceinline__ void follow_mean_of(Gradient<V>& gradient, int i) const {
    float m[V];
    auto const v = x.v.get(i);
#pragma unroll
    for (int c = 0; c < V; ++c) m[c] = element(v, c) - trace.left[i][c];
    follow_mean(gradient, m);
  }
  __device__ __forceinline__ static Vec key_gradient(float const (&weight)[V], float const (&d_weight)[V],
                                                     Vec const& k) {
    Vec dk;
#pragma unroll
    for (int c = 0; c < V; ++c) {
      float const slope = fmaf(-weight[c], weight[c], weight[c]);
      dk.at[c] = from_float<T>(element(k, c) < -FLOOR ? 0 : slope * d_weight[c]);
    }
    return dk;
  }
  __device__ __forceinline__ static Vec value_gradient(float const (&weight)[V], float const (&s)[V]) {
    Vec dv;
#pragma unroll
    for (int c = 0; c < V; ++c) dv.at[c] = from_float<T>(weight[c] * s[c]);
    return dv;
  }
  __device__ __forceinline__ static void add(float (&d_beta)[V], float const (&n)[V], float const (&later)[V]) {
#pragma unroll
    for (int c = 0; c < V; ++c) d_beta[c] = fmaf(n[c], later[c], d_beta[c]);
  }
};
