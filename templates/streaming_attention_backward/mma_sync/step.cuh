// The contribution of one streamed tile to the sums of a warp.
#pragma once
#include "flash_attention_backward/mma_sync/gradient.cuh"

// A tile of queries: addresses of Q and dO in shared memory, and the values of the lane's first two queries.
struct QueryTile {
  uint32_t q, dout;
  TwoRows const* values;
};

// Adds 8 kQueries queries to dK and dV of the warp's 16 kM keys. `k` and `v`: this lane's addresses of its keys from
// rows_first; hide(r_s) masks scores [keys, queries].
template <class T, class Layout, int kSlices, int kQueries, int kM, int kN, class Hide>
__device__ __forceinline__ void add_queries(float (&r_dk)[kM][kN][4], float (&r_dv)[kM][kN][4], uint32_t k, uint32_t v,
                                            QueryTile const& tile, float scale, int chunk0,
                                            LaneOffsets<Layout> const& offsets, int lane, Hide const& hide) {
  float r_s[kM][kQueries][4], r_dp[kM][kQueries][4];
  Query<kM, Layout::kDim> r_pass;
  scores<T, Layout, false>(r_s, r_pass, k, tile.q, offsets);
  hide(r_s);
  scores<T, Layout, false>(r_dp, r_pass, v, tile.dout, offsets);
  uint32_t r_p[kQueries / 2][kM][4], r_ds[kQueries / 2][kM][4];
  differentiate<T>(r_p, r_ds, r_s, r_dp, scale, [&](int, int, int n) { return tile.values[n * 4]; });
  accumulate_steps<T, Layout, kSlices>(r_dv, r_p, tile.dout, chunk0, offsets, lane);
  accumulate_steps<T, Layout, kSlices>(r_dk, r_ds, tile.q, chunk0, offsets, lane);
}

// Adds 8 kKeys keys to dQ of the warp's 16 kM queries. `q` and `dout`: this lane's addresses of its queries from
// rows_first; r_values[i]: values of its row 8 i; hide(r_s) masks scores [queries, keys].
template <class T, class Layout, int kKeys, int kM, int kN, class Hide>
__device__ __forceinline__ void add_keys(float (&r_dq)[kM][kN][4], uint32_t q, uint32_t dout, uint32_t s_k, uint32_t s_v,
                                         RowValues const (&r_values)[2 * kM], float scale,
                                         LaneOffsets<Layout> const& offsets, int lane, Hide const& hide) {
  float r_s[kM][kKeys][4], r_dp[kM][kKeys][4];
  Query<kM, Layout::kDim> r_pass;
  scores<T, Layout, false>(r_s, r_pass, q, s_k, offsets);
  hide(r_s);
  scores<T, Layout, false>(r_dp, r_pass, dout, s_v, offsets);
  uint32_t r_p[kKeys / 2][kM][4], r_ds[kKeys / 2][kM][4];
  differentiate<T>(r_p, r_ds, r_s, r_dp, scale, [&](int m, int h, int) {
    return TwoRows{r_values[2 * m + h], r_values[2 * m + h]};
  });
  accumulate_steps<T, Layout, 1>(r_dq, r_ds, s_k, 0, offsets, lane);
}
