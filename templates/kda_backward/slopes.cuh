// The inputs of the beta and g gates of kda, on tiles, and their slopes.
#pragma once
#include "kda/token.cuh"
#include "kda_backward/tile.cuh"

// 1 - beta would cancel for beta near 1.
template <BetaGate kGate>
__device__ __forceinline__ float beta_slope(float x) {
  return kGate == BetaGate::kNone ? 1 : beta_of<kGate>(x) / (1 + exp2_approx(x * kLog2e));
}

// The bias of the lane's two channels of a tile that starts at `channel`.
template <Gating kGating>
__device__ __forceinline__ float2 bias_pair(HeadGate<kGating> const& gate, int channel, int lane) {
  return gate.bias ? *reinterpret_cast<float2 const*>(gate.bias + channel + lane % 4 * 2) : make_float2(0, 0);
}

constexpr float kForgotten = -160;  // 2^-160 is 0 in fp32

// Converts the input g to a base-2 exponent. Tokens past the last do not decay, whatever the bias. A decay may be
// extreme, or -inf: sums of such exponents would lose those next to them.
template <Gating kGating>
__device__ __forceinline__ float decay_exponent(HeadGate<kGating> const& gate, float g, float bias, bool there) {
  float const exponent = kGating == Gating::kNone || there ? gate(g, bias) : 0;
  return exponent < kForgotten ? kForgotten : exponent;
}
template <Gating kGating>
__device__ __forceinline__ void decay_exponents(Tile& r, HeadGate<kGating> const& gate, int channel, int tokens,
                                                int lane) {
  float2 const bias = bias_pair(gate, channel, lane);
#pragma unroll
  for (int e = 0; e < 4; ++e)
    r[e] = decay_exponent(gate, r[e], e % 2 ? bias.y : bias.x, lane / 4 + e / 2 * 8 < tokens);
}

// Slopes of the natural logarithm of the decay.
struct GateSlopes {
  float input;  // slope with respect to the input g, and to dt_bias
  float rate;   // slope with respect to A_log
};
template <Gating kGating>
__device__ __forceinline__ GateSlopes gate_slopes(HeadGate<kGating> const& gate, float g, float channel_bias) {
  if constexpr (kGating == Gating::kNone) return {1, 0};
  float const x = g + channel_bias;
  if constexpr (kGating == Gating::kBounded) {
    float const up = exp2_approx(gate.rate * x * kLog2e), down = exp2_approx(-gate.rate * x * kLog2e);
    float const input = gate.lower_bound * gate.rate / ((1 + up) * (1 + down));
    return {input, input * x};
  }
  return {-gate.rate / (1 + exp2_approx(-x * kLog2e)), -gate.rate * softplus2(x * kLog2e) / kLog2e};
}
