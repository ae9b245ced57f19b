// o += pulled S: the contribution of a segment's initial state to its tokens.
#pragma once
#include "kda/chunks/bf16.cuh"
#include "thread.cuh"

// Processes a segment with a block of K V / 16 threads; S [K, V] is in shared memory, rounded to bf16. `pulled`
// [tokens, K] are the queries, mapped back to the start of the segment. A lane loads, and stores, four adjacent
// elements of a row at a time: the products use orders of channels and of columns in which four elements of a lane are
// adjacent. Of 16, element 4 t + 2 h + e is at 8 h + 2 t + e.
template <class T, int K, int V>
struct Correction {
  using Tile = Rows<V, true>;
  static constexpr int kBytes = K * Tile::kRowBytes;
  static constexpr int kSteps = K / 16, kGroups = V / 16;
  static constexpr int kWarps = K * kGroups / 32;
  static_assert(K * kGroups % 32 == 0, "a thread for each channel of 16 columns: whole warps");

  using State = uint32_t[kSteps][kGroups][4];  // operands B
  // 16 tokens: a lane has two rows.
  struct Tokens {
    Quad<bf16> pulled[kSteps][2];
    Quad<T> o[kGroups][2];
  };

  unsigned char* smem;
  bf16 const* g_pulled;
  T* g_o;
  int64_t o_stride;
  int tokens;

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // Index of the first token of a lane's rows; the other is 8 further.
  static __device__ __forceinline__ int row(int tile) { return tile * 16 + lane() / 4; }

  __device__ __forceinline__ void load(Tokens& r, int tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const token = row(tile) + 8 * half;
      bool const there = token < tokens;
      bf16 const* g_row = g_pulled + int64_t(token) * K + lane() % 4 * 4;
      T const* g_out = g_o + token * o_stride + lane() % 4 * 4;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) r.pulled[step][half] = load_quad(g_row + 16 * step, there);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) r.o[group][half] = load_quad<T>(g_out + 16 * group, there);
    }
  }

  // Position of row 4 t + 2 h + e of 16: rows of even h and odd h that are written together are in different banks.
  static __device__ __forceinline__ int row_of(int channel) {
    int const h = channel / 2 % 2;
    return channel / 16 * 16 + 8 * h + (channel / 4 % 4 * 2 + channel % 2 ^ 4 * h);
  }
  // Stores this thread's part of S, the result of Merge: 16 columns of a channel.
  __device__ __forceinline__ void share(float4 const (&r)[4]) const {
    int const row = row_of(threadIdx.x % K), chunk = threadIdx.x / K * 2;
    put(row, chunk, pack<bf16>(r[0].x, r[0].y), pack<bf16>(r[1].x, r[1].y), pack<bf16>(r[2].x, r[2].y),
        pack<bf16>(r[3].x, r[3].y));
    put(row, chunk + 1, pack<bf16>(r[0].z, r[0].w), pack<bf16>(r[1].z, r[1].w), pack<bf16>(r[2].z, r[2].w),
        pack<bf16>(r[3].z, r[3].w));
  }
  __device__ __forceinline__ void put(int row, int chunk, uint32_t a, uint32_t b, uint32_t c, uint32_t d) const {
    *reinterpret_cast<uint4*>(smem + Tile::offset(row, chunk)) = make_uint4(a, b, c, d);
  }
  __device__ __forceinline__ void load_state(State& r) const {
    int const at = lane() % 16 ^ (lane() & 8) / 2;
#pragma unroll
    for (int i = 0; i < kSteps * kGroups; ++i) {
      int const step = i / kGroups, group = i % kGroups;
      ldmatrix_trans<4>(r[step][group],
                        shared_address(smem) + 16 * step * Tile::kRowBytes + Tile::offset(at, 2 * group + lane() / 16));
    }
  }

  __device__ __forceinline__ void add(Tokens const& r, State const& r_s, int tile) const {
    uint32_t r_a[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint2 const first = r.pulled[step][0].bits, second = r.pulled[step][1].bits;
      r_a[step][0] = first.x, r_a[step][1] = second.x, r_a[step][2] = first.y, r_a[step][3] = second.y;
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float low[4], high[4], sum[2][4];
      r.o[group][0].unpack(low), r.o[group][1].unpack(high);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = i % 4 < 2 ? low[i / 4 * 2 + i % 2] : high[i / 4 * 2 + i % 2];
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        Bf16Operands::multiply(sum[0], sum[1], r_a[step], r_s[step][group]);
      T* g_out = g_o + row(tile) * o_stride + group * 16 + lane() % 4 * 4;
      if (row(tile) < tokens) store(g_out, sum[0][0], sum[0][1], sum[1][0], sum[1][1]);
      if (row(tile) + 8 < tokens) store(g_out + 8 * o_stride, sum[0][2], sum[0][3], sum[1][2], sum[1][3]);
    }
  }
  static __device__ __forceinline__ void store(T* p, float a, float b, float c, float d) {
    *reinterpret_cast<uint2*>(p) = make_uint2(pack<T>(a, b), pack<T>(c, d));
  }

  // The last 16 tokens of a warp: all warps start with the data written last, which are still in L2.
  __device__ __forceinline__ int last_tile() const { return (tokens + 15) / 16 - 1 - int(threadIdx.x / 32); }
  // Processes all tokens, by the warps in turn; `r` contains a warp's last 16.
  __device__ __forceinline__ void run(Tokens& r) const {
    State r_s;
    load_state(r_s);
#pragma unroll 1
    for (int tile = last_tile(); tile >= 0; tile -= kWarps) {
      Tokens const now = r;
      if (tile >= kWarps) load(r, tile - kWarps);
      add(now, r_s, tile);
    }
  }
};
