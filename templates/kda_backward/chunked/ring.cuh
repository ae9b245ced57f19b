// The inputs of a scan block: the images of a head's chunks and rows of v or do, in a ring of stages.
#pragma once
#include "cp_async.cuh"
#include "kda_backward/chunked/scan.cuh"

// kFirst, kBytes: the part of an image. From the first chunk to the last, or, with kReverse, from the last to the
// first.
template <class Scan, class T, int kFirst, int kBytes, int kStages, int kThreads, bool kReverse>
struct Ring {
  static constexpr int kStageBytes = kBytes + Scan::kValueBytes;
  unsigned char const* g_images;
  T const* g_rows;
  int64_t stride;
  int tokens, chunks;
  uint32_t s_first;
  int issued = 0;

  __device__ __forceinline__ int chunk(int step) const { return kReverse ? chunks - 1 - step : step; }
  static __device__ __forceinline__ uint32_t stage(int step) { return step % kStages * kStageBytes; }
  // Starts copying the next chunk; after the last one, an empty group keeps the group count consistent.
  __device__ __forceinline__ void issue() {
    if (issued < chunks) {
      int const next = chunk(issued);
      Scan::template load_stage<kBytes, kThreads>(s_first + stage(issued),
                                                  g_images + int64_t(next) * Scan::Image::kBytes + kFirst,
                                                  g_rows + int64_t(next) * kChunk * stride, stride,
                                                  tokens - next * kChunk);
    }
    cp_async_commit();
    ++issued;
  }
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) issue();
  }
  // Waits for the oldest stage; the stage that all warps have finished with is refilled.
  __device__ __forceinline__ void advance() {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    issue();
  }
};
