// What a token undergoes before it meets the state.
#pragma once
#include "math.cuh"
#include "types.cuh"

constexpr float kL2Epsilon = 1e-6f;

// How beta is given: as it is, or before a sigmoid, which counts once or twice.
enum class BetaGate { kNone, kSigmoid, kDoubleSigmoid };

constexpr BetaGate beta_gate(bool sigmoid, bool twice) {
  return !sigmoid ? BetaGate::kNone : twice ? BetaGate::kDoubleSigmoid : BetaGate::kSigmoid;
}

template <BetaGate kGate>
__device__ __forceinline__ float beta_of(float x) {
  if constexpr (kGate == BetaGate::kNone) return x;
  float const sigmoid = 1 / (1 + exp2_approx(-x * kLog2e));
  return kGate == BetaGate::kDoubleSigmoid ? 2 * sigmoid : sigmoid;
}
