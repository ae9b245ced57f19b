// A logit that is added to the denominator of a row's softmax, like a key whose value is 0. In base 2.
#pragma once
#include "flash_attention/softmax.cuh"

// Adds the logit to all rows of a warp; `logit(i)`: the logit of the lane's row 8 i. The sums are not yet reduced over
// the lanes and warps that share a row: `counts` is true for exactly one of these.
template <int kM, int kN, class Logit>
__device__ __forceinline__ void add_logit(RowState<kM>& state, float (&r_o)[kM][kN][4], bool counts, Logit const& logit) {
  float peak[kM][2];
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) peak[i / 2][i % 2] = logit(i);
  raise_max<false>(state, r_o, peak, 1);
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i)
    if (counts) state.sum[i / 2][i % 2] += exp2_approx(peak[i / 2][i % 2] - state.max[i / 2][i % 2]);
}

// Adds the logit to one row, whose elements `o` are not yet divided by the sum; `max` may be -inf if no key was
// attended.
template <int kColumns>
__device__ __forceinline__ void add_logit(float (&o)[kColumns], float& max, float& sum, float logit) {
  float const raised = fmaxf(max, logit);
  if (raised == -kInfinity) return;
  float const factor = exp2_approx(max - raised);
#pragma unroll
  for (int d = 0; d < kColumns; ++d) o[d] *= factor;
  sum = sum * factor + exp2_approx(logit - raised);
  max = raised;
}
