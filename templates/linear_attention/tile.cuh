// A tile of BT tokens and BK channels (over all heads) per block. A thread processes L tokens in a row of V channels;
// kLanes adjacent threads form a group, and groups process successive tokens. Threads exchange the sums of groups, and
// blocks the sums of tiles: two floats per channel.
#pragma once
#include "linear_attention/sequences.cuh"
#include "linear_attention/slots.cuh"

template <class Element, int TOKENS, int CHANNELS, int THREADS, int WIDTH, bool STAGED>
struct Tile {
  using T = Element;
  using Vec = Vector<T, WIDTH>;
  static constexpr int BT = TOKENS, BK = CHANNELS, V = WIDTH, kThreads = THREADS;
  static constexpr int kLanes = BK / V;
  static constexpr int kGroups = kThreads / kLanes;
  static constexpr int L = BT / kGroups;
  static constexpr bool kStaged = STAGED;
  using Kept = Slots<Vec, L, kThreads, STAGED>;
  static constexpr int kSumBytes = 8 * kGroups * BK + 4 * kGroups;

  static_assert(BK % V == 0 && kThreads % kLanes == 0, "groups are whole");
  static_assert(BT % kGroups == 0, "groups share the tokens evenly");
  static_assert(BK % 32 == 0 && BK <= kThreads, "whole warps fold the groups, one thread a channel");
};

// Coordinates of a thread in its block's tile.
struct ThreadCoord {
  int block_channel;  // first channel of the block, over all heads
  int channel, group;
  int first;          // first token of the thread
  int begin, end;     // range of its L tokens that exist
};

template <class Tile>
__device__ __forceinline__ ThreadCoord locate(int channel_block, int tile_begin, int tokens, int channels) {
  int const group = threadIdx.x / Tile::kLanes, block_channel = channel_block * Tile::BK;
  int const channel = block_channel + threadIdx.x % Tile::kLanes * Tile::V, first = tile_begin + group * Tile::L;
  return {block_channel, channel, group, first, 0, channel < channels ? min(max(tokens - first, 0), Tile::L) : 0};
}

// End of a span among a thread's tokens: after `begin`, even for tokens outside cu_seqlens.
__device__ __forceinline__ int span_end(Span const& span, ThreadCoord const& at, int begin) {
  return min(at.end, max(span.end - at.first, begin + 1));
}

// The result of a group: its sum, and whether a sequence started among its tokens, so that earlier tokens do not
// contribute. The first token of an unpacked sequence has no predecessor, and needs no cut.
template <int V>
struct Summary {
  State<V> sum;
  bool cut;
};

// σ(k) of a thread's tokens: kept from the sums to the outputs, or recomputed.
template <class Tile, int FLOOR, bool KEPT>
struct Weights {
  static constexpr bool kKept = KEPT;
  float r[KEPT ? Tile::L : 1][Tile::V];

  __device__ __forceinline__ float const (&of(int i) const)[Tile::V] { return r[KEPT ? i : 0]; }
  __device__ __forceinline__ void compute(int i, typename Tile::Kept const& k) {
    weigh<FLOOR>(r[KEPT ? i : 0], k.get(i));
  }
};

// Otherwise the values of every token would be computed before a loop over sequences, all at once.
template <class... Kept>
__device__ __forceinline__ void forget_all(Kept&... kept) {
  (kept.forget(), ...);
}

// The sum over a thread's tokens, from zero or from the start of a sequence.
template <class Tile, class Weights, bool kVarlen>
__device__ __forceinline__ Summary<Tile::V> summarize(Weights& weights, typename Tile::Kept& k, typename Tile::Kept& v,
                                                      float const (&beta)[Tile::V], ThreadCoord const& at,
                                                      Sequences<kVarlen> const& sequences, States const& states) {
  Summary<Tile::V> found = {{}, false};
  if (at.begin >= at.end) return found;
  Span span = sequences.at(at.first + at.begin);
  for (int begin = at.begin, end;; begin = end, span = sequences.at(span.end)) {  // runs once, except if sequences meet
    end = span_end(span, at, begin);
    if (at.first + begin == span.begin) {
      states.begin(found.sum, span.index, at.channel);
      found.cut = true;
    }
    if constexpr (kVarlen) forget_all(k, v);
#pragma unroll
    for (int i = 0; i < Tile::L; ++i) {
      if (i < begin || i >= end) continue;
      weights.compute(i, k);
      advance(found.sum, beta, weights.of(i), v.get(i));
    }
    if (!kVarlen || end == at.end) return found;
  }
}

// The sums of the groups in shared memory, then the state before each group. Groups with fewer than L tokens are the
// last of their row, so their decay is not needed. A cut drops earlier sums instead of scaling them by 0: 0 times NaN
// would be NaN, and leak into the next sequence.
template <class Tile, bool kVarlen>
struct Groups {
  float *s, *n;  // [kGroups][BK]
  int* cuts;     // [kGroups], read if kVarlen

  __device__ __forceinline__ explicit Groups(unsigned char* smem)
      : s(reinterpret_cast<float*>(smem)),
        n(s + Tile::kGroups * Tile::BK),
        cuts(reinterpret_cast<int*>(n + Tile::kGroups * Tile::BK)) {}

  __device__ __forceinline__ void put(ThreadCoord const& at, Summary<Tile::V> const& summary) {
    int const offset = at.group * Tile::BK + threadIdx.x % Tile::kLanes * Tile::V;
    store_floats(s + offset, summary.sum.s);
    store_floats(n + offset, summary.sum.n);
    if (kVarlen && threadIdx.x % Tile::kLanes == 0) cuts[at.group] = summary.cut;
  }
  __device__ __forceinline__ void get(State<Tile::V>& state, ThreadCoord const& at) const {
    int const offset = at.group * Tile::BK + threadIdx.x % Tile::kLanes * Tile::V;
    load_floats(state.s, s + offset);
    load_floats(state.n, n + offset);
  }
  __device__ __forceinline__ bool cut(int group) const { return kVarlen && cuts[group]; }
  __device__ __forceinline__ bool any_cut() const {
    bool found = false;
    for (int group = 0; group < Tile::kGroups; ++group) found |= cut(group);
    return found;
  }

  // The sum over the tile, from zero, for the thread of channel threadIdx.x < BK.
  __device__ __forceinline__ State<1> fold(float beta) const {
    State<1> total = {};
    float const beta_group = float(long_power<Tile::L>(beta));
    for (int group = 0; group < Tile::kGroups; ++group) {
      int const offset = group * Tile::BK + threadIdx.x;
      if (cut(group)) total = {};
      append(total, {beta_group}, State<1>{{s[offset]}, {n[offset]}});
    }
    return total;
  }
  // For the same thread: replaces each group's sum by the state before it, if the state before the tile is `carry`.
  __device__ __forceinline__ void spread(float beta, State<1> carry) {
    float const beta_group = float(long_power<Tile::L>(beta));
    for (int group = 0; group < Tile::kGroups; ++group) {
      int const offset = group * Tile::BK + threadIdx.x;
      State<1> const own = {{s[offset]}, {n[offset]}};
      s[offset] = carry.s[0];
      n[offset] = carry.n[0];
      if (cut(group)) carry = {};
      append(carry, {beta_group}, own);
    }
  }
};

// o of a thread's tokens, from the state before them.
template <class Tile, bool kFinal, class Weights, bool kVarlen>
__device__ __forceinline__ void apply(Column<typename Tile::T> const& o, State<Tile::V>& state, Weights& weights,
                                      typename Tile::Kept& q, typename Tile::Kept& k, typename Tile::Kept& v,
                                      float const (&beta)[Tile::V], ThreadCoord const& at,
                                      Sequences<kVarlen> const& sequences, States const& states) {
  if (at.begin >= at.end) return;
  Span span = sequences.at(at.first);
  for (int begin = at.begin, end;; begin = end, span = sequences.at(span.end)) {
    end = span_end(span, at, begin);
    if (at.first + begin == span.begin) start<kFinal>(state, span, sequences, states, at.channel);
    if constexpr (kVarlen || !Weights::kKept) forget_all(q, k, v);
    auto* to = o.token(at.first);
#pragma unroll
    for (int i = 0; i < Tile::L; ++i, to += o.stride) {
      if (i < begin || i >= end) continue;
      if constexpr (!Weights::kKept) weights.compute(i, k);
      advance(state, beta, weights.of(i), v.get(i));
      store_once(to, output<typename Tile::T>(state, q.get(i)));
    }
    if (kFinal && at.first + end == span.end) finish(state, span, sequences, states, at.channel);
    if (!kVarlen || end == at.end) return;
  }
}
