// Softmax of rows, and the sum of each column of it: plain threads, no tensor cores. A kernel to test the emulator
// with. x, y [rows][N], column_sum [N], both fp32; one block a row.
#include "math.cuh"
#include "thread.cuh"
#include "types.cuh"

constexpr int kThreads = 128, kWarps = kThreads / 32;

template <class Combine>
__device__ __forceinline__ float warp_reduce(float value, Combine combine) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  return value;
}

template <class Combine>
__device__ __forceinline__ float block_reduce(float* s_parts, float value, Combine combine) {
  value = warp_reduce(value, combine);
  if (threadIdx.x % 32 == 0) s_parts[threadIdx.x / 32] = value;
  __syncthreads();  // every warp's part is there
  if (threadIdx.x == 0) {
    float all = s_parts[0];
    for (int w = 1; w < kWarps; w++) all = combine(all, s_parts[w]);
    s_parts[0] = all;
  }
  __syncthreads();  // the result is there
  float const result = s_parts[0];
  __syncthreads();  // and may be overwritten
  return result;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    softmax(float const* __restrict__ x, float* __restrict__ y, float* __restrict__ column_sum, int N) {
  DYNAMIC_SHARED(smem);
  float* const s_parts = reinterpret_cast<float*>(smem);  // [kWarps], the first also the result
  float* const s_row = reinterpret_cast<float*>(smem + 64);
  float* const s_edge = s_row + N;  // [kThreads]: each thread's first element, for its neighbour in the warp
  x += (long long)blockIdx.x * N, y += (long long)blockIdx.x * N;

  float largest = -kInfinity;
  for (int i = threadIdx.x * 4; i < N; i += kThreads * 4) {
    float4 const v = *reinterpret_cast<float4 const*>(x + i);
    *reinterpret_cast<float4*>(s_row + i) = v;
    largest = fmaxf(largest, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  s_edge[threadIdx.x] = largest;
  __syncwarp();  // the neighbours' edges are there
  largest = fmaxf(largest, s_edge[threadIdx.x ^ 1]);
  largest = block_reduce(s_parts, largest, [](float a, float b) { return fmaxf(a, b); });

  float sum = 0.0f;
  for (int i = threadIdx.x; i < N; i += kThreads) {
    float const e = __expf(s_row[i] - largest);
    s_row[i] = e;
    sum += e;
  }
  sum = block_reduce(s_parts, sum, [](float a, float b) { return a + b; });

  for (int i = threadIdx.x; i < N; i += kThreads) {
    float const p = s_row[i] / sum;
    y[i] = p;
    atomicAdd(column_sum + i, p);
  }
}
