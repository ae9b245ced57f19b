// One logit per head that is added to the softmax denominators of its rows, like a key whose value is 0.
#pragma once
#include "flash_attention/tcgen05/block.cuh"

// The scale of scores, and the logits [H]; `work` is the block's work item.
template <class Scale>
struct ScaleAndLogits {
  Scale scale;
  float const* s_aux;
  Work const* work;
};

// The softmax of a row starts as if it had already summed such a key, with a maximum that is too small by a factor of
// 2^8, as lazy maxima may be: P in 16 bits then keeps its mantissa if the logit has nearly all of the weight.
template <class Tile, class Scale>
__device__ __forceinline__ void set_scale(RowThread<Tile>& row, ScaleAndLogits<Scale> const& with) {
  set_scale(row, with.scale);
  float const logit = with.s_aux[with.work->head + (threadIdx.x & (1 << with.work->packed_log2) - 1)];
  row.softmax.max = fmaxf(logit * kLog2e - 8, kLowest);
  row.softmax.sum = logit == -kInfinity ? 0.f : 256.f;
}
