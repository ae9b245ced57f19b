// Boundaries of sequences in a row of tokens, and their initial and final states.
#pragma once
#include "linear_attention/recurrence.cuh"

struct Span {
  int index, begin, end;  // sequence, its first token, and its end
};

// The sequences of one row. `boundaries` [count + 1] with kVarlen; otherwise the row is one sequence, `row`.
template <bool kVarlen>
struct Sequences {
  int const* boundaries;
  int count, row, tokens;

  __device__ __forceinline__ Span span(int index) const {
    if constexpr (!kVarlen) return {index, 0, tokens};
    return {index, boundaries[index], boundaries[index + 1]};
  }

  // The sequence that contains a token; empty ones contain none.
  __device__ __forceinline__ Span at(int token) const {
    if constexpr (!kVarlen) return span(row);
    int low = 0, high = count;  // boundaries[low] <= token < boundaries[high]
    while (high - low > 1) {
      int const middle = (low + high) / 2;
      (boundaries[middle] <= token ? low : high) = middle;
    }
    return span(low);
  }
};

// Initial and final states, fp32 [sequences, 2, channels]: s, then n; null if the problem has none.
struct States {
  float const* initial;
  float* final;
  int channels;

  __device__ __forceinline__ int64_t offset(int sequence, int channel) const {
    return int64_t(sequence) * 2 * channels + channel;
  }
  template <int V>
  __device__ __forceinline__ void begin(State<V>& state, int sequence, int channel) const {
    float const* from = initial + offset(sequence, channel);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      state.s[i] = initial ? from[i] : 0;
      state.n[i] = initial ? from[channels + i] : 0;
    }
  }
  template <int V>
  __device__ __forceinline__ void end(State<V> const& state, int sequence, int channel) const {
    float* to = final + offset(sequence, channel);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      to[i] = state.s[i];
      to[channels + i] = state.n[i];
    }
  }
};

// The final state of an empty sequence is its initial state. The thread that starts a sequence also handles the empty
// ones just before it (step -1), and the one that ends the last sequence those after it (step 1); `boundary`: their
// position.
template <int V>
__device__ __forceinline__ void pass_empty(States const& states, Sequences<true> const& sequences, int index, int step,
                                           int boundary, int channel) {
  for (index += step; index >= 0 && index < sequences.count; index += step) {
    if (sequences.boundaries[index] != boundary || sequences.boundaries[index + 1] != boundary) return;
    State<V> state;
    states.begin(state, index, channel);
    states.end(state, index, channel);
  }
}

// Called before the first token of a sequence.
template <bool kFinal, int V, bool kVarlen>
__device__ __forceinline__ void start(State<V>& state, Span const& span, Sequences<kVarlen> const& sequences,
                                      States const& states, int channel) {
  states.begin(state, span.index, channel);
  if constexpr (kVarlen && kFinal) pass_empty<V>(states, sequences, span.index, -1, span.begin, channel);
}

// Called after the last token of a sequence.
template <int V, bool kVarlen>
__device__ __forceinline__ void finish(State<V> const& state, Span const& span, Sequences<kVarlen> const& sequences,
                                       States const& states, int channel) {
  states.end(state, span.index, channel);
  if constexpr (kVarlen)
    if (span.end == sequences.boundaries[sequences.count]) pass_empty<V>(states, sequences, span.index, 1, span.end, channel);
}
