// One logit per head that is added to the softmax denominators of its rows, like a key whose value is 0.
#pragma once
#include "flash_attention/wgmma/overlap.cuh"

// The Keys of a Tile, and the logits [H].
template <class Keys>
struct KeysAndLogits : Keys {
  float const* s_aux;

  struct Mask : Keys::Mask {
    float logit[2];  // logits of a thread's rows
  };
  __device__ __forceinline__ Mask mask(Work const& work, int warpgroup) const {
    int const row = 64 * warpgroup + M64K16::C::row(threadIdx.x % 128, 0), heads = 1 << work.packed_log2;
    float const* logits = s_aux + work.head;
    return {Keys::mask(work, warpgroup), {logits[row & heads - 1], logits[row + 8 & heads - 1]}};
  }
};

// `attend` for rows whose Keys have logits. The softmax of a row starts as if it had already summed such a key, with a
// maximum that is too small by a factor of 2^8, as lazy maxima may be: P in 16 bits then keeps its mantissa if the logit
// has nearly all of the weight. One of the four threads that share a row includes the logit in its sum.
template <class Tile>
__device__ __forceinline__ void attend_with_logits(Consumer<Tile>& rows, int tiles) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float const logit = rows.mask.logit[h];
    rows.softmax.max[h] = fmaxf(logit * kLog2e - 8, kLowest);
    rows.softmax.sum[h] = threadIdx.x % 4 != 0 || logit == -kInfinity ? 0.f : 256.f;
  }
  attend<Tile>(rows, tiles);
}
