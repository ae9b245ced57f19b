// One small kernel for each primitive of clusters, every result written out.
#include "bulk.cuh"
#include "cluster.cuh"
#include "fence.cuh"
#include "mbarrier.cuh"
#include "thread.cuh"
#include "tma.cuh"
#include "types.cuh"

// ---- ranks, and the barrier: each block's number is read by the next one; out [block][4]

extern "C" __global__ __cluster_dims__(4, 1, 1) void exchange_numbers(int* told, int* out) {
  int const block = blockIdx.x + gridDim.x * blockIdx.y, rank = cluster_rank();
  if (threadIdx.x == 0) told[block] = 100 + block;
  cluster_sync();
  if (threadIdx.x == 0) {
    out[block * 4] = rank;
    out[block * 4 + 1] = cluster_size();
    out[block * 4 + 2] = told[block - rank + (rank + 1) % 4];
    out[block * 4 + 3] = int(map_shared_rank(1024, rank) != map_shared_rank(1024, (rank + 1) % 4));
  }
}

// ---- multicast of bulk copies: each block gives its 16 numbers to the other three; in [block][16], out [block][4][16]

extern "C" __global__ __cluster_dims__(4, 1, 1) void give_to_others(int const* in, int* out) {
  DYNAMIC_SHARED(smem);
  uint32_t const slots = shared_address(smem), barrier = slots + 256;
  int const rank = cluster_rank(), lane = threadIdx.x;
  if (lane < 16) reinterpret_cast<int*>(smem)[rank * 16 + lane] = -1;  // what nobody fills
  if (lane == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 3 * 64);
  }
  cluster_sync();
  if (lane == 0) cp_async_bulk_multicast(slots + rank * 64, in + blockIdx.x * 16, 64, barrier, 0xf & ~(1 << rank));
  mbarrier_wait(barrier, 0);
  for (int i = lane; i < 64; i += 32) out[blockIdx.x * 64 + i] = reinterpret_cast<int const*>(smem)[i];
  cluster_sync();
}

// ---- arrivals on other blocks' barriers: the blocks take turns to fill both blocks' stage; in [rounds][16],
// out [block][rounds][16]

extern "C" __global__ __cluster_dims__(2, 1, 1) void take_turns(int const* in, int* out, int rounds) {
  DYNAMIC_SHARED(smem);
  uint32_t const stages = shared_address(smem), full = stages + 128, empty = full + 16;
  int const rank = cluster_rank(), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 2);
    }
    fence_mbarrier_init();
  }
  cluster_sync();
  for (int round = 0; round < rounds; round++) {
    int const stage = round % 2, phase = round / 2 % 2;
    if (threadIdx.x == 32) {
      mbarrier_wait(empty + 8 * stage, phase ^ 1);  // both blocks have read it
      mbarrier_arrive_expect_tx(full + 8 * stage, 64);
      if (rank == round % 2) cp_async_bulk_multicast(stages + stage * 64, in + round * 16, 64, full + 8 * stage, 3);
    } else if (threadIdx.x < 32) {
      mbarrier_wait(full + 8 * stage, phase);
      if (lane < 16) out[(blockIdx.x * rounds + round) * 16 + lane] = reinterpret_cast<int*>(smem)[stage * 16 + lane];
      __syncwarp();
      if (lane < 2) mbarrier_arrive_cluster(map_shared_rank(empty + 8 * stage, lane));
    }
  }
  __syncwarp();
  cluster_sync();
}

// ---- multicast of boxes: block 1 gives one to both, whose bytes are written out; raw [2][bytes / 4]

extern "C" __global__ __cluster_dims__(2, 1, 1) void tensor_multicast(const __grid_constant__ TensorMap from,
                                                                      uint32_t* raw, int bytes, int dims, int c0,
                                                                      int c1, int c2) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_box = shared_address(smem), barrier = s_box + 32768;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, bytes);
  }
  cluster_sync();
  if (threadIdx.x == 0 && cluster_rank() == 1) {
    if (dims == 1) tma_load_multicast(s_box, &from, barrier, 3, c0);
    if (dims == 2) tma_load_multicast(s_box, &from, barrier, 3, c0, c1);
    if (dims == 3) tma_load_multicast(s_box, &from, barrier, 3, c0, c1, c2);
    if (dims == 4) tma_load_multicast(s_box, &from, barrier, 3, c0, c1, c2, 0);
    if (dims == 5) tma_load_multicast(s_box, &from, barrier, 3, c0, c1, c2, 0, 0);
  }
  mbarrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x)
    raw[cluster_rank() * bytes / 4 + i] = reinterpret_cast<uint32_t const*>(smem)[i];
  cluster_sync();
}

// ---- stores into other blocks: each block tells the next one of its cluster a number, and four; out [block][5]

extern "C" __global__ __cluster_dims__(4, 1, 1) void tell_the_next(uint32_t const* in, uint32_t* out) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_told = shared_address(smem), barrier = s_told + 32;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 20);
  }
  cluster_sync();
  int const next = (cluster_rank() + 1) % cluster_size();
  uint32_t const to = map_shared_rank(s_told, next), to_barrier = map_shared_rank(barrier, next);
  uint32_t const* const own = in + blockIdx.x * 5;
  if (threadIdx.x == 0) store_async(to, make_uint4(own[0], own[1], own[2], own[3]), to_barrier);
  if (threadIdx.x == 1) store_async(to + 16, own[4], to_barrier);
  mbarrier_wait(barrier, 0);
  if (threadIdx.x < 5) out[blockIdx.x * 5 + threadIdx.x] = reinterpret_cast<uint32_t const*>(smem)[threadIdx.x];
  cluster_sync();
}

// ---- copies between blocks: the blocks of a pair make chunks in turn and copy them to each other; both write what
// they ---- have read. `in` [rounds][16], out [block][rounds][16]; thread 32 makes and copies, the other warp reads

extern "C" __global__ __cluster_dims__(2, 1, 1) void make_in_turn(int const* in, int* out, int rounds) {
  DYNAMIC_SHARED(smem);
  uint32_t const stages = shared_address(smem), full = stages + 128, empty = full + 16;
  int const rank = cluster_rank(), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 2);
    }
    fence_mbarrier_init();
  }
  cluster_sync();
  for (int round = 0; round < rounds; round++) {
    int const stage = round % 2, phase = round / 2 % 2;
    if (threadIdx.x == 32 && rank == stage) {
      mbarrier_wait(empty + 8 * stage, phase ^ 1);  // both blocks have read it
      for (int i = 0; i < 16; i++) reinterpret_cast<int*>(smem)[stage * 16 + i] = 3 * in[round * 16 + i];
      fence_proxy_async();
      cp_async_bulk_to_block(map_shared_rank(stages + stage * 64, 1 - rank), stages + stage * 64, 64,
                             map_shared_rank(full + 8 * stage, 1 - rank));
      mbarrier_arrive(full + 8 * stage);
    } else if (threadIdx.x < 32) {
      if (lane == 0 && rank != stage) mbarrier_arrive_expect_tx(full + 8 * stage, 64);
      mbarrier_wait(full + 8 * stage, phase);
      if (lane < 16) out[(blockIdx.x * rounds + round) * 16 + lane] = reinterpret_cast<int*>(smem)[stage * 16 + lane];
      __syncwarp();
      if (lane == 0) mbarrier_arrive_cluster(map_shared_rank(empty + 8 * stage, stage));
    }
  }
  __syncwarp();
  cluster_sync();
}
