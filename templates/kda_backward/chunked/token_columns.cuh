// A slab of a chunk, column by column: a lane processes the tokens of two channels one after the other, so that sums
// over tokens need no exchange between lanes, and rows of global memory are accessed completely. Data are exchanged
// with tiles through shared memory.
#pragma once
#include "kda_backward/chunked/block.cuh"
#include "kda_backward/chunked/slab.cuh"
#include "kda_backward/slopes.cuh"

// fp32 [kChunk, 16 kPairs] of this warp; the second half of the tokens is kHalfBytes after the first.
template <int kPairs, int kHalfBytes>
struct TokenColumns {
  static constexpr int kTiles = 2 * kPairs, kLanes = 4 * kTiles, kGroups = 32 / kLanes;
  static constexpr int kRun = kChunk / kGroups;  // tokens per lane: with few channels, lanes share a column
  static_assert(kLanes <= 32 && 32 % kLanes == 0, "a lane has one pair of channels");

  unsigned char* smem;
  int lane;

  // Tiles of a row are rotated, so that neither columns nor tiles have bank conflicts.
  __device__ __forceinline__ float2* at(int token, int tile, int pair) const {
    int const turn = kTiles > 2 ? token % 4 : token / 2 % 2;
    int const row = token % 8 ^ (kTiles > 2 ? 0 : token / 4 % 2);
    return reinterpret_cast<float2*>(smem + token / 8 * kHalfBytes + row * (32 * kTiles)) + ((tile ^ turn) * 4 + pair);
  }
  __device__ __forceinline__ void get(Tile& r, int tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 const x = *at(lane / 4 + 8 * half, tile, lane % 4);
      r[2 * half] = x.x, r[2 * half + 1] = x.y;
    }
  }
  __device__ __forceinline__ float2 last(int tile) const { return *at(kChunk - 1, tile, lane % 4); }
  __device__ __forceinline__ void put(int tile, Tile const& r) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *at(lane / 4 + 8 * half, tile, lane % 4) = make_float2(r[2 * half], r[2 * half + 1]);
  }

  // This lane's channels are 2 column() and the next, its tokens those from first() on.
  __device__ __forceinline__ int column() const { return lane % kLanes; }
  __device__ __forceinline__ int first() const { return lane / kLanes * kRun; }
  __device__ __forceinline__ float2* mine(int i) const { return at(first() + i, column() / 4, column() % 4); }
  template <class T>
  __device__ __forceinline__ T* row(View<T> const& rows, int i) const {
    return rows.first + (first() + i) * rows.stride + 2 * column();
  }
  template <Gating kGating>
  __device__ __forceinline__ float2 bias_of(HeadGate<kGating> const& gate) const {
    return gate.bias ? reinterpret_cast<float2 const*>(gate.bias)[column()] : make_float2(0, 0);
  }

  // Base-2 exponents of the decay since the start of the chunk. Incomplete chunks are rare: their loop is not unrolled.
  template <class Gate, Gating kGating>
  __device__ __forceinline__ void put_exponents(View<Gate const> const& g, HeadGate<kGating> const& gate,
                                                int tokens) const {
    float2 const sum = tokens < kChunk ? put_exponents<1>(g, gate, tokens) : put_exponents<kRun>(g, gate, kChunk);
    if constexpr (kGroups > 1) {
      float2 const before = of_others<false>(sum);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        float2 x = *mine(i);
        add_to(x, before);
        *mine(i) = x;
      }
    }
    __syncwarp();
  }
  // Exponents relative to this lane's first token; returns the last one.
  template <int kUnroll, class Gate, Gating kGating>
  __device__ __forceinline__ float2 put_exponents(View<Gate const> const& g, HeadGate<kGating> const& gate,
                                                  int tokens) const {
    float2 const bias = bias_of(gate);
    Gate const* g_row = row(g, 0);
    float2 sum = {};
#pragma unroll kUnroll
    for (int i = 0; i < kRun; ++i, g_row += g.stride) {
      bool const there = kUnroll > 1 || first() + i < tokens;
      float2 const x = load_pair(g_row, there);
      add_to(sum, make_float2(decay_exponent(gate, x.x, bias.x, there), decay_exponent(gate, x.y, bias.y, there)));
      *mine(i) = sum;
    }
    return sum;
  }

  // The values stored by tiles, and `end`, summed over the tokens from each on if kSum; `each` is called for every
  // token.
  template <bool kSum, class Each>
  __device__ __forceinline__ void for_each_token(float2 end, int tokens, Each each) const {
    if (kSum && kGroups > 1) {
      float2 sum = {};
#pragma unroll
      for (int i = 0; i < kRun; ++i) add_to(sum, *mine(i));
      add_to(end, of_others<true>(sum));
    }
    if (tokens < kChunk)
      for_each_token<1, kSum>(end, min(tokens - first(), kRun), each);
    else
      for_each_token<kRun, kSum>(end, kRun, each);
  }
  template <int kUnroll, bool kSum, class Each>
  __device__ __forceinline__ void for_each_token(float2 end, int count, Each each) const {
#pragma unroll kUnroll
    for (int i = kRun - 1; i >= 0; --i) {
      float2 x = *mine(i);
      add_to(x, end);
      if (kSum) end = x;
      if (kUnroll > 1 || i < count) each(i, x);
    }
  }
  static __device__ __forceinline__ void add_to(float2& r, float2 x) { r.x += x.x, r.y += x.y; }
  // Sum over the lanes of the column with earlier tokens, or later ones.
  template <bool kLater>
  __device__ __forceinline__ float2 of_others(float2 own) const {
    if (kGroups == 1) return {};
    float2 r = from_lane<kLater>(own, kLanes);
#pragma unroll
    for (int lanes = kLanes; lanes < 32; lanes *= 2) add_to(r, from_lane<kLater>(r, lanes));
    return r;
  }
  // The value of the lane at this distance; zeros if there is none.
  template <bool kLater>
  __device__ __forceinline__ float2 from_lane(float2 x, int lanes) const {
    int const other = kLater ? lane + lanes : lane - lanes;
    bool const there = 0 <= other && other < 32;
    x.x = __shfl_sync(0xffffffff, x.x, other & 31), x.y = __shfl_sync(0xffffffff, x.y, other & 31);
    return there ? x : make_float2(0, 0);
  }
  // Sums the partial totals of the lanes of a column over all tokens, and stores them.
  __device__ __forceinline__ void store_total(float* to, float2 r) const {
#pragma unroll
    for (int lanes = kLanes; lanes < 32; lanes *= 2) {
      r.x += __shfl_xor_sync(0xffffffff, r.x, lanes);
      r.y += __shfl_xor_sync(0xffffffff, r.y, lanes);
    }
    if (lane < kLanes) reinterpret_cast<float2*>(to)[lane] = r;
  }
};
