// A logit of each head that joins the denominators of its rows' softmax: as a key would whose value is 0.
#pragma once
#include "flash_attention/tcgen05/block.cuh"

// How scores are scaled, and the logits [H]; `work` is the block's.
template <class Scale>
struct ScaleAndLogits {
  Scale scale;
  float const* s_aux;
  Work const* work;
};

// A row's softmax begins as if it had summed such a key, under a maximum of 2^8 less, as lazy maxima are at most, so that
// P in 16 bits keeps its mantissa where the logit takes nearly all.
template <class Tile, class Scale>
__device__ __forceinline__ void set_scale(RowThread<Tile>& row, ScaleAndLogits<Scale> const& with) {
  set_scale(row, with.scale);
  float const logit = with.s_aux[with.work->head + (threadIdx.x & (1 << with.work->packed_log2) - 1)];
  row.softmax.max = fmaxf(logit * kLog2e - 8, kLowest);
  row.softmax.sum = logit == -kInfinity ? 0.f : 256.f;
}
