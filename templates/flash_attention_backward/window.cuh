// Which queries attend a key with a window around their own position.
#pragma once
#include "flash_attention/window.cuh"

// Sets scores [16 kM keys, 8 kN queries] to -inf if the key is more than `left` before the query's own key, or more
// than `right` after it. `first`: a lane's query minus its key, if the key is the query's own.
template <int kM, int kN>
__device__ __forceinline__ void hide_far(float (&r_s)[kM][kN][4], int first, int left, int right) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        int const distance = n * 8 + e % 2 - m * 16 - e / 2 * 8 - first;
        if (distance < -right || distance > left) r_s[m][n][e] = -kInfinity;
      }
}
