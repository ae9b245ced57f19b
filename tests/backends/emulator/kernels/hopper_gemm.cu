// C = A B^T on bulk copies, wgmma and a TMA store: threads scale A in shared memory before it is multiplied.
// a [M][64], b [64][64] bf16, c [M][64] fp32 by a tensor map with boxes of [64][32]; one block 64 rows. A kernel to
// test the emulator with.
#include "bulk.cuh"
#include "fence.cuh"
#include "fragment.cuh"
#include "mbarrier.cuh"
#include "register.cuh"
#include "thread.cuh"
#include "tma.cuh"
#include "types.cuh"
#include "wgmma.cuh"

constexpr int K = 64, kTile = 64 * K * 2, kHalf = 64 * 32 * 4;

extern "C" __global__ void __launch_bounds__(128, 1)
    hopper_gemm(bf16 const* __restrict__ a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_a = shared_address(smem), s_b = s_a + kTile, s_c = s_b + kTile, s_raw = s_c + 2 * kHalf;
  uint32_t const barrier = s_raw + kTile;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 2 * kTile);
    cp_async_bulk(s_raw, a + (long long)blockIdx.x * 64 * K, kTile, barrier);
    tma_load(s_b, &b, barrier, 0, 0);
  }
  mbarrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < 64 * K; i += 128) {
    bf16 const x = reinterpret_cast<bf16 const*>(smem + (s_raw - s_a))[i];
    *reinterpret_cast<bf16*>(smem + swizzled(i * 2, Swizzle::k128B)) = from_float<bf16>(2.0f * to_float(x));
  }
  fence_proxy_async();
  __syncthreads();  // A is scaled

  float acc[32];
  fence_registers(acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 16)
    wgmma_m64k16<bf16>(acc, wgmma_descriptor(s_a + k * 2, 16, 1024, Swizzle::k128B),
                       wgmma_descriptor(s_b + k * 2, 16, 1024, Swizzle::k128B), k > 0);
  wgmma_commit();
  wgmma_wait<0>();
  fence_registers(acc);

#pragma unroll
  for (int e = 0; e < 32; e++) {
    int const row = M64K16::C::row(threadIdx.x, e), col = M64K16::C::col(threadIdx.x, e);
    uint32_t const within = swizzled(row * 128 + col % 32 * 4, Swizzle::k128B);
    *reinterpret_cast<float*>(smem + (s_c - s_a) + col / 32 * kHalf + within) = acc[e];
  }
  fence_proxy_async();
  __syncthreads();  // C is there
  if (threadIdx.x == 0) {
    tma_store(&c, s_c, 0, blockIdx.x * 64);
    tma_store(&c, s_c + kHalf, 32, blockIdx.x * 64);
    cp_async_bulk_commit();
    cp_async_bulk_wait_read<0>();
  }
}
