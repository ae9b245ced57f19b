// A logit of each head that joins the denominators of its rows' softmax: as a key would whose value is 0.
#pragma once
#include "flash_attention/wgmma/overlap.cuh"

// A Tile's Keys, and the logits [H].
template <class Keys>
struct KeysAndLogits : Keys {
  float const* s_aux;

  struct Mask : Keys::Mask {
    float logit[2];  // of a thread's rows
  };
  __device__ __forceinline__ Mask mask(Work const& work, int warpgroup) const {
    int const row = 64 * warpgroup + M64K16::C::row(threadIdx.x % 128, 0), heads = 1 << work.packed_log2;
    float const* logits = s_aux + work.head;
    return {Keys::mask(work, warpgroup), {logits[row & heads - 1], logits[row + 8 & heads - 1]}};
  }
};

// `attend` of rows whose Keys have logits: a row's softmax begins as if it had summed such a key, under a maximum of 2^8
// less, as lazy maxima are at most, so that P in 16 bits keeps its mantissa where the logit takes nearly all. One of the
// four threads that share a row has it in its sum.
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
