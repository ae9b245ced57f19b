// A thread's vectors of one tensor, one per token, between load and use: in registers, or in slots of shared memory
// private to the thread, loaded with cp.async.
#pragma once
#include "cp_async.cuh"
#include "linear_attention/vector.cuh"
#include "thread.cuh"

// One channel vector of every token of a row; `at` is that of token 0.
template <class T>
struct Column {
  T* at;
  int64_t stride;  // elements between tokens
  __device__ __forceinline__ T* token(int t) const { return at + t * stride; }
};

// The column of a channel, numbered over all heads, in a row of the batch.
template <int D, class T>
__device__ __forceinline__ Column<T> column(T* x, int64_t batch_stride, int64_t token_stride, int64_t head_stride,
                                            int row, int channel) {
  return {x + row * batch_stride + channel / D * head_stride + channel % D, token_stride};
}

// fetch: loads the tokens [begin, end) of the TOKENS from `first` on. forget: values computed from the vectors are not
// kept for later, so that they occupy no registers.
template <class Vec, int TOKENS, int THREADS, bool STAGED>
struct Slots;

template <class Vec, int TOKENS, int THREADS>
struct Slots<Vec, TOKENS, THREADS, false> {
  static constexpr int kBytes = 0;
  Vec r[TOKENS];

  __device__ __forceinline__ explicit Slots(unsigned char*) {}
  template <class T>
  __device__ __forceinline__ void fetch(Column<T const> const& column, int first, int begin, int end) {
    T const* from = column.token(first);
#pragma unroll
    for (int i = 0; i < TOKENS; ++i, from += column.stride)
      if (i >= begin && i < end) r[i] = load_once<Vec>(from);
  }
  __device__ __forceinline__ Vec const& get(int i) const { return r[i]; }
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) ::forget(r[i]);
  }
};

template <class Vec, int TOKENS, int THREADS>
struct Slots<Vec, TOKENS, THREADS, true> {
  static constexpr int kBytes = TOKENS * THREADS * sizeof(Vec);
  unsigned char* smem;  // token after token, thread after thread: no bank conflicts

  __device__ __forceinline__ explicit Slots(unsigned char* smem) : smem(smem + threadIdx.x * sizeof(Vec)) {}
  template <class T>
  __device__ __forceinline__ void fetch(Column<T const> const& column, int first, int begin, int end) {
    uint32_t const slots = shared_address(smem);
    T const* from = column.token(first);
#pragma unroll
    for (int i = 0; i < TOKENS; ++i, from += column.stride)
      if (i >= begin && i < end) cp_async<sizeof(Vec)>(slots + i * THREADS * sizeof(Vec), from);
    cp_async_commit();
  }
  __device__ __forceinline__ Vec get(int i) const {
    return *reinterpret_cast<Vec const*>(smem + i * THREADS * sizeof(Vec));
  }
  __device__ __forceinline__ void forget() { forget_memory(); }
};

// Waits until all but the newest N fetches of this thread have completed; loads to registers need no wait.
template <bool STAGED, int N>
__device__ __forceinline__ void wait_fetched() {
  if constexpr (STAGED) cp_async_wait<N>();
}
