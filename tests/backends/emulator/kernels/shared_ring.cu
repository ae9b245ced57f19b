// y [blocks][n] = 2 x + 1 for x [n], in every block of a cluster of two, which make chunks of x in turn and copy each
// to the other: made once, read twice. n a multiple of 64. A kernel to test the emulator with.
#include "bulk.cuh"
#include "cluster.cuh"
#include "fence.cuh"
#include "mbarrier.cuh"
#include "thread.cuh"

constexpr int kCluster = 2, kChunk = 32, kStages = 4;
constexpr int kBytes = 4 * kChunk;

struct Barriers {
  uint32_t full, empty;  // one a stage, 8 bytes apart; a stage is always made by the same block
};

__device__ __forceinline__ void init(Barriers const& b) {
  for (int i = 0; i < kStages; i++) {
    mbarrier_init(b.full + 8 * i, 1);
    mbarrier_init(b.empty + 8 * i, kCluster);
  }
  fence_mbarrier_init();
}

// A warp makes every other chunk.
__device__ __forceinline__ void make(Barriers const& b, unsigned char* smem, int const* x, int n) {
  int const rank = cluster_rank(), other = 1 - rank, lane = threadIdx.x % 32;
  for (int chunk = rank; chunk < n / kChunk; chunk += kCluster) {
    int const stage = chunk % kStages, phase = chunk / kStages % 2;
    uint32_t const place = shared_address(smem) + stage * kBytes, full = b.full + 8 * stage;
    mbarrier_wait(b.empty + 8 * stage, phase ^ 1);  // both blocks have read the chunk before
    reinterpret_cast<int*>(smem)[stage * kChunk + lane] = 2 * x[chunk * kChunk + lane] + 1;
    fence_proxy_async();
    __syncwarp();  // the chunk is made
    if (lane == 0) {
      uint32_t const to = map_shared_rank(full, other);
      mbarrier_arrive_expect_tx_cluster(to, kBytes);
      cp_async_bulk_to_block(map_shared_rank(place, other), place, kBytes, to);
      mbarrier_arrive(full);
    }
  }
}

__device__ __forceinline__ void read(Barriers const& b, unsigned char const* smem, int* y, int n) {
  int const lane = threadIdx.x % 32;
  for (int chunk = 0; chunk < n / kChunk; chunk++) {
    int const stage = chunk % kStages, phase = chunk / kStages % 2, maker = chunk % kCluster;
    mbarrier_wait(b.full + 8 * stage, phase);
    y[blockIdx.x * n + chunk * kChunk + lane] = reinterpret_cast<int const*>(smem)[stage * kChunk + lane];
    __syncwarp();  // the chunk has been read
    if (lane == 0) mbarrier_arrive_cluster(map_shared_rank(b.empty + 8 * stage, maker));
  }
}

extern "C" __global__ void __launch_bounds__(64, 1) __cluster_dims__(kCluster, 1, 1)
    shared_ring(int const* x, int* y, int n) {
  DYNAMIC_SHARED(smem);
  uint32_t const barriers = shared_address(smem) + kStages * kBytes;
  Barriers const b{barriers, barriers + 8 * kStages};
  if (threadIdx.x == 0) init(b);
  cluster_sync();  // the barriers are initialised
  if (threadIdx.x < 32)
    read(b, smem, y, n);
  else
    make(b, smem, x, n);
  __syncwarp();
  cluster_sync();  // nobody arrives here, copies to here or from here any more
}
