// A logit that joins the denominator of a row's softmax: as a key would whose value is 0. In base 2.
#pragma once
#include "flash_attention/softmax.cuh"

// Of all rows of a warp; `logit(i)`: of the lane's row 8 i. The sums are not over the lanes and warps that share a row
// yet: `counts` is true for one of these.
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

// Of one row, whose elements `o` are not divided by the sum yet; where no key was attended `max` may be -inf.
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
