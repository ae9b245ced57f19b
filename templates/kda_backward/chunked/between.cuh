// The contributions of the tokens of a chunk to each other and, exactly, to the gates between them. Computed from the
// contributions to queries and keys, the gradient of a gate is a difference: pairs after a token cancel, and the
// contribution that passes a nearly complete decay is lost. Here each pair contributes only to the gates between its
// tokens.
#pragma once
#include "kda_backward/chunked/within.cuh"

template <class Operands>
struct Between {
  using Within = ::Within<Operands>;
  Within const& within;

  // Like Within::add; dg: the part from everything that ends in the chunk, from before it and within it.
  __device__ __forceinline__ void add(Tile& q, Tile& k, Tile& up, Tile& dg, Channels const& x, bool large) const {
    Within::decay(q, k, x);
    set_ends(dg, q, k, x);
    sum_down(dg, within.lane);
    if (large) {
      within.for_each_token(x, [&](Channels const& other, int token) {
        Tile d_q = {}, d_k = {};
        within.add_token(d_q, d_k, up, x, other, token);
        add_after(dg, d_q, d_k, x, token);
        add_tile(q, d_q);
        add_tile(k, d_k);
      });
    } else {
#pragma unroll 1
      for (int level = 0; level < 4; ++level) add_level(q, k, up, dg, x, level);
    }
  }
  static __device__ __forceinline__ void add_tile(Tile& r, Tile const& x) {
#pragma unroll
    for (int e = 0; e < 4; ++e) r[e] += x[e];
  }
  // The part of the gradients of a token's query and key that has passed its gate.
  __device__ __forceinline__ void set_ends(Tile& r, Tile const& q, Tile const& k, Channels const& x) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) r[e] = within.scale * x.q[e] * q[e] + x.k[e] * k[e];
  }
  // Contributions of `token` to later tokens pass the gates of the tokens after it.
  __device__ __forceinline__ void add_after(Tile& dg, Tile const& d_q, Tile const& d_k, Channels const& x,
                                            int token) const {
    Tile ends;
    set_ends(ends, d_q, d_k, x);
    sum_down(ends, within.lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) dg[e] += within.lane / 4 + e / 2 * 8 > token ? ends[e] : 0;
  }

  // Pairs of one token in the first half of an aligned group of 2 << level, and one in the second half: they pass all
  // gates between them, and each half is summed separately.
  __device__ __forceinline__ void add_level(Tile& q, Tile& k, Tile& up, Tile& dg, Channels const& x, int level) const {
    Tile q_in, k_in, k_up, ends, starts, d_q = {}, d_k = {}, d_up = {};
    within.start(q_in, k_in, k_up, x);
    multiply(d_q, within.queries, k_up, level);
    multiply(d_k, within.keys, k_up, level);
    multiply(d_up, within.keys_t, k_in, level);
    multiply(d_up, within.queries_t, q_in, level);
    Within::end(d_q, d_k, d_up, x);
    set_ends(ends, d_q, d_k, x);
#pragma unroll
    for (int e = 0; e < 4; ++e) starts[e] = x.k[e] * d_up[e];
    sum_down_groups(ends, 1 << level, within.lane);
    sum_before_groups(starts, 1 << level, within.lane);
    add_tile(dg, ends);
    add_tile(dg, starts);
    add_tile(q, d_q);
    add_tile(k, d_k);
    add_tile(up, d_up);
  }
  __device__ __forceinline__ void multiply(Tile& r, typename Operands::Block const& triangle, Tile const& x,
                                           int level) const {
    typename Operands::Block r_a;
    typename Operands::Half r_b;
    Operands::keep_level(r_a, triangle, level, within.lane);
    Operands::pack_transposed(r_b, x);
    Operands::multiply(r, r_a, r_b);
  }
};
