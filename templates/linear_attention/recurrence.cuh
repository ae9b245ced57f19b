// The recurrence of V channels: n = β n + σ(k), s = β s + σ(k) v, o = q s / n.
#pragma once
#include "linear_attention/vector.cuh"
#include "math.cuh"

constexpr __host__ __device__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <int V>
struct State {
  float s[V], n[V];
};

// s and n of one channel, in their memory layout.
__device__ __forceinline__ State<1> to_state(float2 pair) { return {{pair.x}, {pair.y}}; }
__device__ __forceinline__ float2 to_pair(State<1> const& state) { return {state.s[0], state.n[0]}; }

// s and n of one channel over many tokens, in fp64: with little decay, the rounding errors of a chain in fp32 add up,
// and rounding β^BT would change β.
struct alignas(16) Carry {
  double s, n;
};
__device__ __forceinline__ Carry to_carry(State<1> const& state) { return {state.s[0], state.n[0]}; }
__device__ __forceinline__ Carry to_carry(float2 pair) { return {pair.x, pair.y}; }
__device__ __forceinline__ Carry to_carry(Carry const& carry) { return carry; }
__device__ __forceinline__ State<1> to_state(Carry const& carry) { return {{float(carry.s)}, {float(carry.n)}}; }

// A key below the floor is clamped to the floor; NaN is preserved.
template <int FLOOR>
__device__ __forceinline__ float sigmoid(float k) {
  float const key = k < -FLOOR ? -FLOOR : k;
  return rcp_approx(1 + exp2_approx(-kLog2e * key));
}

template <int FLOOR, class Vec, int V>
__device__ __forceinline__ void weigh(float (&weight)[V], Vec const& k) {
#pragma unroll
  for (int i = 0; i < V; ++i) weight[i] = sigmoid<FLOOR>(element(k, i));
}

template <class Vec, int V>
__device__ __forceinline__ void advance(State<V>& state, float const (&beta)[V], float const (&weight)[V],
                                        Vec const& v) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    state.n[i] = fmaf(beta[i], state.n[i], weight[i]);
    state.s[i] = fmaf(beta[i], state.s[i], weight[i] * element(v, i));
  }
}

template <class T, class Vec, int V>
__device__ __forceinline__ Vec output(State<V> const& state, Vec const& q) {
  Vec o;
#pragma unroll
  for (int i = 0; i < V; ++i) o.at[i] = from_float<T>(element(q, i) * (state.s[i] * rcp_approx(state.n[i])));
  return o;
}

// state = factor · state + later, per channel.
template <int V>
__device__ __forceinline__ void append(State<V>& state, float const (&factor)[V], State<V> const& later) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    state.s[i] = fmaf(factor[i], state.s[i], later.s[i]);
    state.n[i] = fmaf(factor[i], state.n[i], later.n[i]);
  }
}

template <class Sum>
__device__ __forceinline__ void append(Carry& carry, double factor, Sum const& later) {
  Carry const sum = to_carry(later);
  carry.s = factor * carry.s + sum.s;
  carry.n = factor * carry.n + sum.n;
}

// β^TOKENS: in fp32 the rounding errors of β near 1 would add up.
template <int TOKENS>
__device__ __forceinline__ double long_power(float beta) {
  static_assert((TOKENS & (TOKENS - 1)) == 0, "a power of two takes squarings alone");
  double power = beta;
#pragma unroll
  for (int i = 1; i < TOKENS; i *= 2) power *= power;
  return power;
}

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
