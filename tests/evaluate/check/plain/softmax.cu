// Softmax of rows, a warp each, by cooperative groups.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <math.h>

namespace cg = cooperative_groups;

extern "C" __global__ void softmax(const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ y, int rows,
                                   int columns) {
  const auto block = cg::this_thread_block();
  const auto warp = cg::tiled_partition<32>(block);
  const int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  __shared__ int s_done;
  if (block.thread_rank() == 0) s_done = 0;
  block.sync();
  if (row >= rows) return;
  const __nv_bfloat16* from = x + static_cast<size_t>(row) * columns;
  float peak = -INFINITY, sum = 0;
  for (int i = warp.thread_rank(); i < columns; i += warp.size()) peak = fmaxf(peak, __bfloat162float(from[i]));
  peak = cg::reduce(warp, peak, cg::greater<float>());
  for (int i = warp.thread_rank(); i < columns; i += warp.size()) sum += __expf(__bfloat162float(from[i]) - peak);
  sum = cg::reduce(warp, sum, cg::plus<float>());
  for (int i = warp.thread_rank(); i < columns; i += warp.size())
    y[static_cast<size_t>(row) * columns + i] = __float2bfloat16(__expf(__bfloat162float(from[i]) - peak) / sum);
  const auto active = cg::coalesced_threads();
  if (active.thread_rank() == 0) atomicAdd(&s_done, active.num_threads());
}
