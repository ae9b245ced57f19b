// Causal attention on TMA and wgmma: a producer warpgroup loads K and V by stage, a consumer warpgroup multiplies.
// q, k, v [H][T][64] bf16 as tensor maps with boxes of [64][64], o [H][T][64]; grid (ceil(T / 64), H). A kernel to test
// the emulator with.
#include "fence.cuh"
#include "fragment.cuh"
#include "math.cuh"
#include "mbarrier.cuh"
#include "register.cuh"
#include "thread.cuh"
#include "tma.cuh"
#include "types.cuh"
#include "wgmma.cuh"

constexpr int BM = 64, BN = 64, D = 64, STAGES = 2;
constexpr int kTile = 64 * D * 2;  // bytes; rows of 128, swizzled over all of them
constexpr int kConsumers = 128;

__device__ __forceinline__ uint64_t k_major(uint32_t tile, int k) {
  return wgmma_descriptor(tile + k * 2, 16, 1024, Swizzle::k128B);
}
__device__ __forceinline__ uint64_t mn_major(uint32_t tile, int k) {
  return wgmma_descriptor(tile + k * 128, 1024, 1024, Swizzle::k128B);
}

struct Barriers {
  uint32_t q, full, empty;  // full and empty: one a stage, 8 bytes apart
};

__device__ __forceinline__ void produce(Barriers const& b, uint32_t s_q, uint32_t s_k, uint32_t s_v, TensorMap const* q,
                                        TensorMap const* k, TensorMap const* v, int blocks) {
  int const head = blockIdx.y;
  mbarrier_arrive_expect_tx(b.q, kTile);
  tma_load(s_q, q, b.q, 0, blockIdx.x * BM, head);
  for (int j = 0; j < blocks; j++) {
    int const stage = j % STAGES, phase = j / STAGES % 2;
    mbarrier_wait(b.empty + 8 * stage, phase ^ 1);  // the stage has been read
    mbarrier_arrive_expect_tx(b.full + 8 * stage, 2 * kTile);
    tma_load(s_k + stage * kTile, k, b.full + 8 * stage, 0, j * BN, head);
    tma_load(s_v + stage * kTile, v, b.full + 8 * stage, 0, j * BN, head);
  }
}

// The scores' exponentials to base 2, masked; the accumulators' correction, for the two rows of a thread.
__device__ __forceinline__ void softmax(float (&s)[BN / 2], float (&row_max)[2], float (&row_sum)[2], float (&correction)[2],
                                        int j, int first_row, int T, float scale) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float m = row_max[h];
#pragma unroll
    for (int e = 0; e < BN / 2; e++) {
      if (e / 2 % 2 != h) continue;
      int const col = j * BN + M64K16::C::col(threadIdx.x, e), row = first_row + M64K16::C::row(threadIdx.x, e);
      s[e] = col <= row && col < T ? s[e] * scale : -kInfinity;
      m = fmaxf(m, s[e]);
    }
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    float const base = m == -kInfinity ? 0.0f : m;
    correction[h] = exp2_approx(row_max[h] - base);
    row_max[h] = m;
    row_sum[h] *= correction[h];
#pragma unroll
    for (int e = 0; e < BN / 2; e++) {
      if (e / 2 % 2 != h) continue;
      s[e] = exp2_approx(s[e] - base);
      row_sum[h] += s[e];
    }
  }
}

__device__ __forceinline__ void consume(Barriers const& b, uint32_t s_q, uint32_t s_k, uint32_t s_v, bf16* s_o, bf16* o,
                                        int blocks, int T, float scale) {
  float acc[D / 2] = {}, row_max[2] = {-kInfinity, -kInfinity}, row_sum[2] = {0.0f, 0.0f};
  mbarrier_wait(b.q, 0);
  for (int j = 0; j < blocks; j++) {
    int const stage = j % STAGES, phase = j / STAGES % 2;
    mbarrier_wait(b.full + 8 * stage, phase);  // the stage is loaded
    float s[BN / 2];
    fence_registers(s);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D; k += 16)
      wgmma_m64k16<bf16>(s, k_major(s_q, k), k_major(s_k + stage * kTile, k), k > 0);
    wgmma_commit();
    wgmma_wait<0>();  // the scores
    fence_registers(s);

    float correction[2];
    softmax(s, row_max, row_sum, correction, j, blockIdx.x * BM, T, scale);
#pragma unroll
    for (int e = 0; e < D / 2; e++) acc[e] *= correction[e / 2 % 2];
    uint32_t p[BN / 16][4];
#pragma unroll
    for (int i = 0; i < BN / 4; i++) p[i / 4][i % 4] = pack<bf16>(s[2 * i], s[2 * i + 1]);

    fence_registers(acc);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BN; k += 16)
      wgmma_m64k16<bf16, Major::kMN>(acc, p[k / 16], mn_major(s_v + stage * kTile, k), true);
    wgmma_commit();
    wgmma_wait<0>();  // the values
    fence_registers(acc);
    mbarrier_arrive(b.empty + 8 * stage);
  }

  // Through shared memory, so that rows leave whole; the queries have been read.
#pragma unroll
  for (int h = 0; h < 2; h++) {
    row_sum[h] += __shfl_xor_sync(0xffffffffu, row_sum[h], 1);
    row_sum[h] += __shfl_xor_sync(0xffffffffu, row_sum[h], 2);
  }
#pragma unroll
  for (int e = 0; e < D / 2; e += 2) {
    float const inverse = 1.0f / row_sum[e / 2 % 2];
    int const row = M64K16::C::row(threadIdx.x, e), col = M64K16::C::col(threadIdx.x, e);
    *reinterpret_cast<uint32_t*>(s_o + row * D + col) = pack<bf16>(acc[e] * inverse, acc[e + 1] * inverse);
  }
  named_barrier_sync(1, kConsumers);  // all rows are there
  for (int i = threadIdx.x; i < BM * D / 8; i += kConsumers) {
    int const row = blockIdx.x * BM + i / (D / 8);
    if (row < T)
      *reinterpret_cast<uint4*>(o + ((long long)blockIdx.y * T + row) * D + i % (D / 8) * 8) =
          *reinterpret_cast<uint4 const*>(s_o + i * 8);
  }
}

extern "C" __global__ void __launch_bounds__(256, 1)
    hopper_attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                     const __grid_constant__ TensorMap v, bf16* __restrict__ o, int T, float scale) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_q = shared_address(smem), s_k = s_q + kTile, s_v = s_k + STAGES * kTile;
  uint32_t const barriers = s_v + STAGES * kTile;
  Barriers const b{barriers, barriers + 8, barriers + 8 + 8 * STAGES};
  int const blocks = min((T + BN - 1) / BN, int(blockIdx.x) + 1);
  if (threadIdx.x == 0) {
    mbarrier_init(b.q, 1);
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(b.full + 8 * i, 1);
      mbarrier_init(b.empty + 8 * i, kConsumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are initialised
  if (threadIdx.x >= kConsumers) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == kConsumers) produce(b, s_q, s_k, s_v, &q, &k, &v, blocks);
  } else {
    setmaxnreg_inc<232>();
    consume(b, s_q, s_k, s_v, reinterpret_cast<bf16*>(smem), o, blocks, T, scale);
  }
}
