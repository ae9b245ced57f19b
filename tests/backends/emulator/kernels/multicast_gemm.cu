// C = A B^T in clusters of two blocks, of 64 rows each, that share every tile of B: each loads half of it for both.
// a [M][K], b [64][K] bf16 as tensor maps with boxes of [64][64] and [32][64], c [M][64] fp32; grid a multiple of two.
// A kernel to test the emulator with.
#include "cluster.cuh"
#include "fence.cuh"
#include "fragment.cuh"
#include "mbarrier.cuh"
#include "register.cuh"
#include "thread.cuh"
#include "tma.cuh"
#include "types.cuh"
#include "wgmma.cuh"

constexpr int N = 64, BK = 64, STAGES = 2, kCluster = 2;
constexpr int kTile = 64 * BK * 2;  // bytes; rows of 128, swizzled over all of them
constexpr int kConsumers = 128;

struct Barriers {
  uint32_t full, empty;  // one a stage, 8 bytes apart
};

__device__ __forceinline__ void init(Barriers const& b) {
  for (int i = 0; i < STAGES; i++) {
    mbarrier_init(b.full + 8 * i, 1);
    mbarrier_init(b.empty + 8 * i, kCluster);
  }
  fence_mbarrier_init();
}

__device__ __forceinline__ void produce(Barriers const& b, uint32_t s_a, uint32_t s_b, TensorMap const* a,
                                        TensorMap const* b_half, int K) {
  int const half = cluster_rank();
  for (int j = 0; j < K / BK; j++) {
    int const stage = j % STAGES, phase = j / STAGES % 2;
    uint32_t const full = b.full + 8 * stage;
    mbarrier_wait(b.empty + 8 * stage, phase ^ 1);  // both blocks have read the stage
    mbarrier_arrive_expect_tx(full, 2 * kTile);
    tma_load(s_a + stage * kTile, a, full, j * BK, blockIdx.x * 64);
    tma_load_multicast(s_b + stage * kTile + half * kTile / 2, b_half, full, 3, j * BK, half * 32);
  }
}

__device__ __forceinline__ void multiply(float (&acc)[N / 2], uint32_t a, uint32_t b, bool accumulate) {
  fence_registers(acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < BK; k += 16)
    wgmma_m64k16<bf16>(acc, wgmma_descriptor(a + k * 2, 16, 1024, Swizzle::k128B),
                       wgmma_descriptor(b + k * 2, 16, 1024, Swizzle::k128B), accumulate || k > 0);
  wgmma_commit();
  wgmma_wait<0>();
  fence_registers(acc);
}

// One thread a block tells each producer; those of this block have met before.
__device__ __forceinline__ void release(uint32_t empty) {
  named_barrier_sync(1, kConsumers);  // all have read the stage
  if (threadIdx.x < kCluster) mbarrier_arrive_cluster(map_shared_rank(empty, threadIdx.x));
}

__device__ __forceinline__ void consume(Barriers const& b, uint32_t s_a, uint32_t s_b, float* c, int M, int K) {
  float acc[N / 2];
  for (int j = 0; j < K / BK; j++) {
    int const stage = j % STAGES, phase = j / STAGES % 2;
    mbarrier_wait(b.full + 8 * stage, phase);  // the stage is loaded
    multiply(acc, s_a + stage * kTile, s_b + stage * kTile, j > 0);
    release(b.empty + 8 * stage);
  }
#pragma unroll
  for (int e = 0; e < N / 2; e++) {
    int const row = blockIdx.x * 64 + M64K16::C::row(threadIdx.x, e), col = M64K16::C::col(threadIdx.x, e);
    if (row < M) c[(long long)row * N + col] = acc[e];
  }
}

extern "C" __global__ void __launch_bounds__(kConsumers + 32, 1) __cluster_dims__(kCluster, 1, 1)
    multicast_gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int M, int K) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_a = shared_address(smem), s_b = s_a + STAGES * kTile;
  Barriers const barriers{s_b + STAGES * kTile, s_b + STAGES * kTile + 8 * STAGES};
  if (threadIdx.x == 0) init(barriers);
  cluster_sync();  // the barriers are initialised
  if (threadIdx.x < kConsumers) {
    consume(barriers, s_a, s_b, c, M, K);
  } else {
    if (threadIdx.x == kConsumers) produce(barriers, s_a, s_b, &a, &b, K);
    __syncwarp();
  }
  cluster_sync();  // no block arrives or copies here any more
}
