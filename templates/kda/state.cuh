// Loads and stores of the state of one sequence and value head.
#pragma once
#include "types.cuh"

// States [P, HV, rows, columns] that are updated in place. Without `indices` [N], entry n belongs to sequence n.
struct StatePool {
  float* entries;
  int const* indices;
  int64_t entry_stride, head_stride, row_stride, index_stride;
};

// One stored state: K × V, or V × K if it is V-first. Pointers are null if nothing is read or written.
struct StoredState {
  float const* initial;
  float* last;
  int64_t row_stride;
  bool skipped;  // the sequence has no entry in the pool
};

// `initial` and `last` [N, HV, kRows, kColumns] may be null. kPool: the state is in the pool, whatever they are. With a
// run-time test, accesses of the pool would be generic: for arches before sm_100 the compiler does not infer global
// memory for pointers that may be null.
template <int kRows, int kColumns, bool kPool>
__device__ __forceinline__ StoredState stored_state(float const* initial, float* last, StatePool const& pool, int n,
                                                    int head, int heads) {
  if constexpr (kPool) {
    int64_t const entry = pool.indices ? pool.indices[n * pool.index_stride] : n;
    float* const state = pool.entries + entry * pool.entry_stride + head * pool.head_stride;
    return {state, state, pool.row_stride, entry < 0};
  }
  int64_t const offset = (int64_t(n) * heads + head) * kRows * kColumns;
  return {initial ? initial + offset : nullptr, last ? last + offset : nullptr, kColumns, false};
}

// N adjacent elements, 1, 2 or 4, aligned to their size.
template <int N>
__device__ __forceinline__ void load_vector(float (&r)[N], float const* g) {
  if constexpr (N == 4) {
    float4 const x = *reinterpret_cast<float4 const*>(g);
    r[0] = x.x, r[1] = x.y, r[2] = x.z, r[3] = x.w;
  } else if constexpr (N == 2) {
    float2 const x = *reinterpret_cast<float2 const*>(g);
    r[0] = x.x, r[1] = x.y;
  } else {
    r[0] = g[0];
  }
}
template <int N>
__device__ __forceinline__ void store_vector(float* g, float const (&r)[N]) {
  if constexpr (N == 4) *reinterpret_cast<float4*>(g) = make_float4(r[0], r[1], r[2], r[3]);
  if constexpr (N == 2) *reinterpret_cast<float2*>(g) = make_float2(r[0], r[1]);
  if constexpr (N == 1) g[0] = r[0];
}
