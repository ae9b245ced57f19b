// The mask between a thread's two rows and the columns of a streamed tile.
#pragma once
#include "flash_attention_backward/panels/rows.cuh"

template <class Pass>
struct Sight {
  int bound[2];  // rows are keys: the first query that attends the key; queries: number of attended keys
  int whole;     // the bound of the warpgroup's row with the fewest attended pairs

  // `row`: the warpgroup's first row; query i attends the keys up to i + reach.
  __device__ __forceinline__ Sight(int row, int seq_q, int seq_k) {
    int const reach = seq_k - seq_q, mine = row + M64K16::C::row(threadIdx.x % 128, 0);
    if constexpr (Pass::kOwnsKeys) {
      bound[0] = mine - reach;
      bound[1] = bound[0] + 8;
      whole = Pass::kCausal ? row + 63 - reach : 0;
    } else {
      bound[0] = Pass::kCausal ? min(seq_k, mine + reach + 1) : seq_k;
      bound[1] = Pass::kCausal ? min(seq_k, mine + reach + 9) : seq_k;
      whole = Pass::kCausal ? min(seq_k, row + reach + 1) : seq_k;
    }
  }
  // Masks the scores of the tile that starts at column `first`.
  __device__ __forceinline__ void apply(typename Rows<Pass>::Scores& r_s, int first) const {
    constexpr int N = Pass::kTile;
    if (Pass::kOwnsKeys ? first >= whole : first + N <= whole) return;
    int const col = first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int e = 0; e < N / 2; ++e) {
      int const beyond = bound[e / 2 % 2] - col;
      int const within = e / 4 * 8 + e % 2;
      if (Pass::kOwnsKeys ? within < beyond : within >= beyond) r_s[e] = -kInfinity;
    }
  }
};
