// y = relu(a b^T) c on TMA and tcgen05: one warp loads b and c by stage, one multiplies, four turn sums in tensor
// memory into the next product's operand there. a [M][64], b and c [N][64] bf16 (the two by tensor maps with boxes of
// [64][64]), y [M][64] fp32; one block 128 rows. A kernel to test the emulator with.
#include "fence.cuh"
#include "mbarrier.cuh"
#include "swizzle.cuh"
#include "tcgen05.cuh"
#include "thread.cuh"
#include "tma.cuh"
#include "types.cuh"

constexpr int BM = 128, BN = 64, D = 64, STAGES = 2;
constexpr int kTile = 64 * D * 2;  // bytes; rows of 128, swizzled over all of them
constexpr int kRows = 128;         // threads that have a row each
constexpr int kColumns = 256;      // of tensor memory: the output, the sums, and what becomes of them
constexpr int kSums = D, kHidden = kSums + BN;

struct Barriers {
  uint32_t full, empty, sums, hidden, done;  // full and empty: one a stage, 8 bytes apart
};

__device__ __forceinline__ void produce(Barriers const& s, uint32_t s_b, uint32_t s_c, TensorMap const* b,
                                        TensorMap const* c, int blocks) {
  for (int j = 0; j < blocks; j++) {
    int const stage = j % STAGES, phase = j / STAGES % 2;
    mbarrier_wait(s.empty + 8 * stage, phase ^ 1);  // the stage has been read
    mbarrier_arrive_expect_tx(s.full + 8 * stage, 2 * kTile);
    tma_load(s_b + stage * kTile, b, s.full + 8 * stage, 0, j * BN);
    tma_load(s_c + stage * kTile, c, s.full + 8 * stage, 0, j * BN);
  }
}

__device__ __forceinline__ void multiply(Barriers const& s, uint32_t tensor, uint32_t s_a, uint32_t s_b, uint32_t s_c,
                                         int blocks) {
  constexpr uint32_t kScores = tcgen05_instruction<bf16, BN>();
  constexpr uint32_t kOutput = tcgen05_instruction<bf16, D, Major::kK, Major::kMN>();
  uint64_t const a = tcgen05_descriptor(s_a, 16, 1024, Swizzle::k128B);
  for (int j = 0; j < blocks; j++) {
    int const stage = j % STAGES;
    uint64_t const b = tcgen05_descriptor(s_b + stage * kTile, 16, 1024, Swizzle::k128B);
    uint64_t const c = tcgen05_descriptor(s_c + stage * kTile, 1024, 1024, Swizzle::k128B);
    mbarrier_wait(s.full + 8 * stage, j / STAGES % 2);  // the stage is loaded
#pragma unroll
    for (int k = 0; k < D; k += 16)
      tcgen05_mma(tensor + kSums, tcgen05_advance(a, k * 2), tcgen05_advance(b, k * 2), kScores, k > 0);
    tcgen05_commit(s.sums);
    mbarrier_wait(s.hidden, j % 2);  // the sums have been read, and what became of them is there
    tcgen05_fence_after_thread_sync();  // of the hidden rows
#pragma unroll
    for (int k = 0; k < BN; k += 16)
      tcgen05_mma(tensor, tensor + kHidden + k / 2, tcgen05_advance(c, k * 128), kOutput, j > 0 || k > 0);
    tcgen05_commit(s.empty + 8 * stage);
  }
  tcgen05_commit(s.done);
}

__device__ __forceinline__ void activate(Barriers const& s, uint32_t own, int blocks) {
  for (int j = 0; j < blocks; j++) {
    mbarrier_wait(s.sums, j % 2);  // the products are done
    tcgen05_fence_after_thread_sync();  // of the sums
    float x[BN];
    tcgen05_ld_32x32b(x, own + kSums);
    tcgen05_wait_ld();  // of the sums
    uint32_t hidden[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; i++) hidden[i] = pack<bf16>(fmaxf(x[2 * i], 0.0f), fmaxf(x[2 * i + 1], 0.0f));
    tcgen05_st_32x32b(own + kHidden, hidden);
    tcgen05_wait_st();
    tcgen05_fence_before_thread_sync();  // of the hidden rows
    mbarrier_arrive(s.hidden);
  }
}

// A row of the first operand, or zeros, by the thread that has it.
__device__ __forceinline__ void load_row(unsigned char* tile, bf16 const* a, int row, int M) {
#pragma unroll
  for (int i = 0; i < D / 8; i++)
    *reinterpret_cast<uint4*>(tile + swizzled(threadIdx.x * 128 + i * 16, Swizzle::k128B)) =
        row < M ? reinterpret_cast<uint4 const*>(a + row * D)[i] : make_uint4(0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(192, 1)
    blackwell_mlp(bf16 const* __restrict__ a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
                  float* __restrict__ y, int M, int N) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_a = shared_address(smem), s_b = s_a + 2 * kTile, s_c = s_b + STAGES * kTile;
  uint32_t const barriers = s_c + STAGES * kTile, place = barriers + 64;
  Barriers const s{barriers, barriers + 8 * STAGES, barriers + 16 * STAGES, barriers + 16 * STAGES + 8,
                   barriers + 16 * STAGES + 16};
  int const warp = threadIdx.x / 32, row = blockIdx.x * BM + threadIdx.x, blocks = N / BN;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES; i++) mbarrier_init(s.full + 8 * i, 1);
    mbarrier_init(s.sums, 1);
    mbarrier_init(s.hidden, kRows);
    mbarrier_init(s.done, 1);
    fence_mbarrier_init();
  }
  if (warp == 0) {
    tcgen05_alloc(place, kColumns);
    tcgen05_relinquish_alloc_permit();
  }
  if (threadIdx.x < kRows) load_row(smem, a, row, M);
  fence_proxy_async();
  __syncthreads();  // the barriers are initialised, the operand and the columns' address are there
  uint32_t const tensor = *reinterpret_cast<uint32_t const*>(smem + (place - s_a));
  uint32_t const own = tensor + (warp % 4 * 32 << 16);

  if (warp == 4) {
    if (elect_one()) produce(s, s_b, s_c, &b, &c, blocks);
  } else if (warp == 5) {
    if (elect_one()) multiply(s, tensor, s_a, s_b, s_c, blocks);
  } else {
    activate(s, own, blocks);
    mbarrier_wait(s.done, 0);  // the output is there
    tcgen05_fence_after_thread_sync();  // of the output
    float out[D];
    tcgen05_ld_32x32b(out, own);
    tcgen05_wait_ld();  // of the output
#pragma unroll
    for (int i = 0; i < D; i += 4)
      if (row < M)
        *reinterpret_cast<float4*>(y + row * D + i) = make_float4(out[i], out[i + 1], out[i + 2], out[i + 3]);
    tcgen05_fence_before_thread_sync();  // of the output
  }
  __syncthreads();  // all have read
  if (warp == 0) tcgen05_dealloc(tensor, kColumns);
}
