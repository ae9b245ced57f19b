// S = A S + B from segment to segment, in fp32: the initial state of each segment.
#pragma once
#include "cp_async.cuh"
#include "thread.cuh"

// A block computes kParts times kColumns columns of the state of one head for all segments; thread t owns channel t % K
// of a part of them. A segment's map, K × K and transposed, passes through a ring of kStages tiles of 16 rows, whose
// loads never wait for the state.
template <int K, int V, int kColumns, int kStages, int kParts = 2>
struct Merge {
  static constexpr int kThreads = kParts * K;
  static constexpr int kRows = 16;                           // rows of a map per tile
  static constexpr int kTiles = K / kRows;                   // tiles per map
  static constexpr int kTileBytes = 4 * kRows * K;
  static constexpr int kVectors = kColumns / 4;
  static constexpr int kStateBytes = 4 * K * kParts * kColumns;  // [kParts, kVectors, K, 4]
  // start of two states: the one being read, and the one being written
  static constexpr int kStates = kStages * kTileBytes;
  static constexpr int kBytes = kStates + 2 * kStateBytes;
  static_assert(kColumns % 4 == 0, "rows of the state are read 16 bytes at a time");

  unsigned char* smem;
  float const* g_maps;  // map of the first segment that has one; K × K each, contiguous
  float* g_states;      // its initial state, [K, V], at the block's first column, followed by B of each segment
  int segments;         // number of segments with a map

  static __device__ __forceinline__ int channel() { return threadIdx.x % K; }
  static __device__ __forceinline__ int part() { return threadIdx.x / K; }

  // Starts copying tile `tile` of all maps, which are contiguous.
  __device__ __forceinline__ void issue(int tile) const {
    float const* g_tile = g_maps + int64_t(tile) * kRows * K;
    uint32_t const s_tile = shared_address(smem) + tile % kStages * kTileBytes;
    if (tile < segments * kTiles)
      for (int i = threadIdx.x; i < kTileBytes / 16; i += kThreads) cp_async<16>(s_tile + 16 * i, g_tile + 4 * i);
    cp_async_commit();
  }

  // A part of a state's columns in shared memory: a row of [kVectors, K].
  __device__ __forceinline__ float4* s_state(int segment) const {
    return reinterpret_cast<float4*>(smem + kStates + segment % 2 * kStateBytes) + part() * kVectors * K;
  }
  // This thread's part of a state in global memory.
  __device__ __forceinline__ float4* g_state(int segment) const {
    return reinterpret_cast<float4*>(g_states + (int64_t(segment) * K + channel()) * V + part() * kColumns);
  }
  using Row = float4[kVectors];
  __device__ __forceinline__ void fetch(Row& r, int segment) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) r[i] = g_state(segment)[i];
  }
  __device__ __forceinline__ void store(int segment, Row const& r) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) g_state(segment)[i] = r[i];
  }
  __device__ __forceinline__ void share(int segment, Row const& r) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) s_state(segment)[i * K + channel()] = r[i];
  }

  // r += 16 rows of the map times those channels of the segment's initial state.
  __device__ __forceinline__ void multiply(Row& r, int segment, int tile) const {
    float const* s_map = reinterpret_cast<float const*>(smem + tile % kStages * kTileBytes) + channel();
    float4 const* s_rows = s_state(segment) + tile % kTiles * kRows;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float const a = s_map[row * K];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float4 const s = s_rows[i * K + row];
        r[i].x += a * s.x, r[i].y += a * s.y, r[i].z += a * s.z, r[i].w += a * s.w;
      }
    }
  }

  // `r`, and s_state(segments) after a block barrier: the state after the last segment. kStored: also stores the state
  // after each segment, in place of its B.
  template <bool kStored>
  __device__ __forceinline__ void run(Row& r) const {
    fetch(r, 0);
    share(0, r);
    for (int tile = 0; tile < kStages - 1; ++tile) issue(tile);
#pragma unroll 1
    for (int segment = 0; segment < segments; ++segment) {
      fetch(r, segment + 1);
#pragma unroll 1
      for (int i = 0; i < kTiles; ++i) {
        int const tile = segment * kTiles + i;
        cp_async_wait<kStages - 2>();
        // the tile and the state are stored, and every warp has finished with the stage to be filled next
        __syncthreads();
        issue(tile + kStages - 1);
        multiply(r, segment, tile);
      }
      share(segment + 1, r);
      if constexpr (kStored) store(segment + 1, r);
    }
  }
  __device__ __forceinline__ void run() const {
    Row r;
    run<true>(r);
  }
};
