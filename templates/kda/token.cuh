// Transformations of a token's inputs before they are applied to the state.
#pragma once
#include "math.cuh"
#include "types.cuh"

constexpr float kL2Epsilon = 1e-6f;

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffff, x, lanes);
  return x;
}

// The form of beta: as used, or before a sigmoid, which may be doubled.
enum class BetaGate { kNone, kSigmoid, kDoubleSigmoid };

constexpr BetaGate beta_gate(bool sigmoid, bool twice) {
  return !sigmoid ? BetaGate::kNone : twice ? BetaGate::kDoubleSigmoid : BetaGate::kSigmoid;
}

template <BetaGate kGate>
__device__ __forceinline__ float beta_of(float x) {
  if constexpr (kGate == BetaGate::kNone) return x;
  float const sigmoid = rcp_approx(1 + exp2_approx(-x * kLog2e));
  return kGate == BetaGate::kDoubleSigmoid ? 2 * sigmoid : sigmoid;
}

// The form of g: the logarithm of the decay, or the input of one of two gates.
enum class Gating { kNone, kSoftplus, kBounded };

constexpr Gating gating(bool in_kernel, bool bounded) {
  return !in_kernel ? Gating::kNone : bounded ? Gating::kBounded : Gating::kSoftplus;
}

// log2(1 + 2^x), relative error 1.3e-6: max(x, 0) + log2(1 + t), t = 2^-|x|; the second term is t times a polynomial
// (minimax on [0, 1]). In 1 + t, the 1 would absorb the digits of t, an error common to all tokens of a weak gate; and
// there are no cases, which would need branches.
__device__ __forceinline__ float softplus2(float x) {
  float const t = exp2_approx(-fabsf(x));
  float y = 0.0204011742f;
  y = fmaf(y, t, -0.0957975164f);
  y = fmaf(y, t, 0.215284511f);
  y = fmaf(y, t, -0.339089006f);
  y = fmaf(y, t, 0.477668375f);
  y = fmaf(y, t, -0.721159458f);
  y = fmaf(y, t, 1.44269323f);
  return fmaf(y, t, fmaxf(x, 0.0f));
}

// 2^x - 1, accurate if it is small: multiplying a state by ex2(x) for every token would accumulate the error of each,
// so that a gate near 1 would lose accuracy in proportion to the number of tokens.
__device__ __forceinline__ float exp2_less_one(float x) {
  float const few = x * (kLn2 + x * (0.24022651f + x * (0.05550411f + x * (0.00961813f + x * 0.00133336f))));
  return fabsf(x) < 0.25f ? few : exp2_approx(x) - 1;
}

// The gate of one head, in base 2. `bias` [K] may be null.
template <Gating kGating>
struct HeadGate {
  float rate, lower_bound;  // e^A_log
  float const* bias;

  __device__ __forceinline__ float bias_of(int channel) const { return bias ? bias[channel] : 0; }
  __device__ __forceinline__ float operator()(float g, float channel_bias) const {
    if constexpr (kGating == Gating::kNone) return g * kLog2e;
    float const x = fmaf(g, kLog2e, channel_bias * kLog2e);
    if constexpr (kGating == Gating::kBounded) return lower_bound * kLog2e * rcp_approx(1 + exp2_approx(-rate * x));
    return -rate * softplus2(x);
  }
};

// `A_log` [HV] and `dt_bias` [HV, K] of the launch.
template <Gating kGating, int K>
__device__ __forceinline__ HeadGate<kGating> head_gate(float const* A_log, float const* dt_bias, float lower_bound,
                                                       int head) {
  return {A_log ? exp2_approx(A_log[head] * kLog2e) : 1, lower_bound, dt_bias ? dt_bias + int64_t(head) * K : nullptr};
}

// The tokens of one sequence: their location and number.
struct Sequence {
  int batch;
  int64_t first;
  int tokens;
};

// Sequence n of those that `cu_seqlens` packs into a batch of 1, or, if that is null, of a batch.
template <class Index>
__device__ __forceinline__ Sequence sequence(Index const* cu_seqlens, int n, int seq_len) {
  if (!cu_seqlens) return {n, 0, seq_len};
  return {0, cu_seqlens[n], int(cu_seqlens[n + 1] - cu_seqlens[n])};
}
