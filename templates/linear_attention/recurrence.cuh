// The recurrence of V channels: n = β n + σ(k), s = β s + σ(k) v, o = q s / n.
#pragma once
#include "linear_attention/vector.cuh"
#include "math.cuh"

constexpr __host__ __device__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <int V>
struct State {
  float s[V], n[V];
};

// s and n of one channel, as they lie in memory.
__device__ __forceinline__ State<1> to_state(float2 pair) { return {{pair.x}, {pair.y}}; }
__device__ __forceinline__ float2 to_pair(State<1> const& state) { return {state.s[0], state.n[0]}; }

// A key below the floor counts as the floor; a NaN stays one.
template <int FLOOR>
__device__ __forceinline__ float sigmoid(float k) {
  float const key = k < -FLOOR ? -FLOOR : k;
  return rcp_approx(1 + exp2_approx(-kLog2e * key));
}

template <int FLOOR, class Vec, int V>
__device__ __forceinline__ void advance(State<V>& state, float const (&beta)[V], Vec const& k, Vec const& v) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float const weight = sigmoid<FLOOR>(to_float(k.at[i]));
    state.n[i] = fmaf(beta[i], state.n[i], weight);
    state.s[i] = fmaf(beta[i], state.s[i], weight * to_float(v.at[i]));
  }
}

template <class T, class Vec, int V>
__device__ __forceinline__ Vec output(State<V> const& state, Vec const& q) {
  Vec o;
#pragma unroll
  for (int i = 0; i < V; ++i) o.at[i] = from_float<T>(to_float(q.at[i]) * (state.s[i] * rcp_approx(state.n[i])));
  return o;
}

// state = factor · state + later, a channel at a time.
template <int V>
__device__ __forceinline__ void append(State<V>& state, float const (&factor)[V], State<V> const& later) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    state.s[i] = fmaf(factor[i], state.s[i], later.s[i]);
    state.n[i] = fmaf(factor[i], state.n[i], later.n[i]);
  }
}

// β^tokens to two ulp: by squaring, the roundings of β near 1 would add up. 0^0 = 1.
__device__ __forceinline__ float power(float beta, int tokens) { return tokens ? exp2f(tokens * log2f(beta)) : 1; }

enum class Decay { scalar, head, channel };

// β of V channels from `channel` on, which share a head.
template <Decay DECAY, int D, int V>
__device__ __forceinline__ void load_beta(float (&r_beta)[V], float const* beta, float scalar, int channel) {
  float const shared = DECAY == Decay::head ? beta[channel / D] : scalar;
#pragma unroll
  for (int i = 0; i < V; ++i) r_beta[i] = DECAY == Decay::channel ? beta[channel + i] : shared;
}
template <Decay DECAY, int D>
__device__ __forceinline__ float load_beta(float const* beta, float scalar, int channel) {
  float r_beta[1];
  load_beta<DECAY, D>(r_beta, beta, scalar, channel);
  return r_beta[0];
}
