// A tile of BT tokens and BK channels (over all heads) in a block. A thread takes L tokens in a row of V channels;
// kLanes threads side by side are a group, and the groups follow each other in time. What crosses threads is a group's
// sum, and what crosses blocks is a tile's: two floats a channel.
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

// Where a thread is in its block's tile.
struct ThreadCoord {
  int block_channel;  // the first of the block, over all heads
  int channel, group;
  int first;          // token of the thread
  int begin, end;     // of its L tokens, those that are there
};

template <class Tile>
__device__ __forceinline__ ThreadCoord locate(int channel_block, int tile_begin, int tokens, int channels) {
  int const group = threadIdx.x / Tile::kLanes, block_channel = channel_block * Tile::BK;
  int const channel = block_channel + threadIdx.x % Tile::kLanes * Tile::V, first = tile_begin + group * Tile::L;
  return {block_channel, channel, group, first, 0, channel < channels ? min(max(tokens - first, 0), Tile::L) : 0};
}

// Where a span ends among a thread's tokens: behind `begin`, even for tokens that cu_seqlens leaves out.
__device__ __forceinline__ int span_end(Span const& span, ThreadCoord const& at, int begin) {
  return min(at.end, max(span.end - at.first, begin + 1));
}

// What a group leaves: its sum, and whether a sequence began among its tokens, so that nothing earlier counts. The
// first token of an unpacked sequence has nothing before it, and needs no cut.
template <int V>
struct Summary {
  State<V> sum;
  bool cut;
};

// σ(k) of a thread's tokens: kept from the sums to the outputs, or computed for each.
template <class Tile, int FLOOR, bool KEPT>
struct Weights {
  static constexpr bool kKept = KEPT;
  float r[KEPT ? Tile::L : 1][Tile::V];

  __device__ __forceinline__ float const (&of(int i) const)[Tile::V] { return r[KEPT ? i : 0]; }
  __device__ __forceinline__ void compute(int i, typename Tile::Kept const& k) {
    weigh<FLOOR>(r[KEPT ? i : 0], k.get(i));
  }
};

// Otherwise what each token needs would be computed ahead of a loop over sequences, all at once.
template <class... Kept>
__device__ __forceinline__ void forget_all(Kept&... kept) {
  (kept.forget(), ...);
}

// The sum over a thread's tokens, from zero or from where a sequence begins.
template <class Tile, class Weights, bool kVarlen>
__device__ __forceinline__ Summary<Tile::V> summarize(Weights& weights, typename Tile::Kept& k, typename Tile::Kept& v,
                                                      float const (&beta)[Tile::V], ThreadCoord const& at,
                                                      Sequences<kVarlen> const& sequences, States const& states) {
  Summary<Tile::V> found = {{}, false};
  if (at.begin >= at.end) return found;
  Span span = sequences.at(at.first + at.begin);
  for (int begin = at.begin, end;; begin = end, span = sequences.at(span.end)) {  // once, but where sequences meet
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

// Groups' sums in shared memory, then what each group starts from. Groups with fewer than L tokens are the last of
// their row: nothing that follows asks how much they forget. What a cut forgets is dropped: 0 times NaN would be NaN,
// and one sequence's would be the next one's.
template <class Tile, bool kVarlen>
struct Groups {
  float *s, *n;  // [kGroups][BK]
  int* cuts;     // [kGroups], read where kVarlen

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

  // For the thread of channel threadIdx.x < BK: the sum over the tile, from zero.
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
  // Likewise: replaces each group's sum by the state it starts from, when the tile starts from `carry`.
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
