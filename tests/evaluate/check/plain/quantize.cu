// Rows of 128 to 8 bits with a scale a warp: what C++ for CUDA brings along, and PTX makes of it.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>

namespace cg = cooperative_groups;

__constant__ float c_weights[4] = {0.5f, 1.5f, -2.0f, 3.0f};
__device__ const int d_order[8] = {7, 6, 5, 4, 3, 2, 1, 0};
__device__ unsigned d_blocks = 0;

__device__ __noinline__ float weighted(float x, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x * c_weights[i & 3];
  return sum;
}

extern "C" __global__ void quantize(const float* __restrict__ x, int8_t* __restrict__ q, uint8_t* __restrict__ q8,
                                    float* __restrict__ scale, float* __restrict__ sums, int* __restrict__ dots,
                                    __half2* halves, __nv_bfloat162* bf16s) {
  __shared__ float s_row[128];
  const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  const int i = blockIdx.x * 128 + threadIdx.x;
  __pipeline_memcpy_async(&s_row[threadIdx.x], &x[i], sizeof(float));
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  const float v = s_row[threadIdx.x];
  assert(!std::isnan(v));

  float peak = fabsf(v);
  for (int lane = warp.size() / 2; lane > 0; lane /= 2) peak = fmaxf(peak, warp.shfl_xor(peak, lane));
  const int rounded = max(-127, min(127, __float2int_rn(v / (peak / 127.0f))));
  q[i] = static_cast<int8_t>(rounded);
  q8[i] = __nv_fp8_e4m3(v).__x;
  if (warp.thread_rank() == 0) scale[i / 32] = peak / 127.0f;

  sums[i] = weighted(v, 5) + sinf(v) + powf(fabsf(v), 1.5f);
  const int other = __shfl_sync(0xffffffff, rounded, d_order[threadIdx.x % 8], 8);
  dots[i] = __dp4a(other, 0x01010101, rounded) + __popc(__match_any_sync(0xffffffff, rounded)) + __ffs(other);
  atomicAdd(halves, __floats2half2_rn(1.0f, v > 0 ? 1.0f : 0.0f));
  atomicAdd(bf16s, __floats2bfloat162_rn(1.0f, v > 0 ? 1.0f : 0.0f));
  if (threadIdx.x == 0 && atomicInc(&d_blocks, gridDim.x - 1) == gridDim.x - 1) printf("the last of %d\n", gridDim.x);
}
