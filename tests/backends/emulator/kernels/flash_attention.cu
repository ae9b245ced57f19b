// Causal flash attention forward on mma.sync, cp.async double buffer: a kernel to test the emulator with.
// q, k, v, o [H][T][D] bf16, lse [H][T]; one block computes BM rows of one head; grid (ceil(T / BM), H).
#include "cp_async.cuh"
#include "fragment.cuh"
#include "ldmatrix.cuh"
#include "math.cuh"
#include "mma.cuh"
#include "thread.cuh"
#include "types.cuh"

constexpr int BM = 64, BN = 64, D = 72, STAGES = 2;
constexpr int kThreads = BM / 16 * 32;
constexpr int DP = (D + 15) / 16 * 16;     // padded to the K of one mma
constexpr int kPitch = (DP + 8) * 2;       // bytes a row: 8 more elements spread the rows over the banks
constexpr int kTileBytes = BN * kPitch;
constexpr int kChunks = D / 8, kPaddedChunks = DP / 8;  // of 16 bytes

__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) { return row * kPitch + chunk * 16; }
__device__ __forceinline__ uint32_t chunk_read_offset(int row, int chunk) { return chunk_offset(row, chunk); }

template <int ROWS>
__device__ __forceinline__ void load_tile(uint32_t s_tile, bf16 const* g_rows, int first, int T) {
  for (int i = threadIdx.x; i < ROWS * kPaddedChunks; i += kThreads) {
    int const row = i / kPaddedChunks, chunk = i % kPaddedChunks;
    bool const inside = chunk < kChunks && first + row < T;
    long long const element = inside ? (long long)(first + row) * D + chunk * 8 : 0;
    cp_async<16>(s_tile + chunk_offset(row, chunk), g_rows + element, inside ? 16 : 0);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    flash_attention(bf16 const* __restrict__ q, bf16 const* __restrict__ k, bf16 const* __restrict__ v,
                    bf16* __restrict__ o, float* __restrict__ lse, int T, float scale) {
  DYNAMIC_SHARED(smem);
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, m0 = blockIdx.x * BM;
  long long const head = (long long)blockIdx.y * T * D;
  q += head, k += head, v += head, o += head, lse += (long long)blockIdx.y * T;
  uint32_t const s_q = shared_address(smem), s_k = s_q + BM * kPitch, s_v = s_k + STAGES * kTileBytes;
  int const blocks = min((T + BN - 1) / BN, (m0 + BM + BN - 1) / BN);

  load_tile<BM>(s_q, q, m0, T);
  load_tile<BN>(s_k, k, 0, T);
  load_tile<BN>(s_v, v, 0, T);
  cp_async_commit();

  float acc[DP / 8][4] = {};
  float row_max[2] = {-kInfinity, -kInfinity}, row_sum[2] = {0.0f, 0.0f};
  uint32_t r_q[DP / 16][4];
  for (int j = 0; j < blocks; j++) {
    int const stage = j % STAGES;
    if (j + 1 < blocks) {
      load_tile<BN>(s_k + (1 - stage) * kTileBytes, k, (j + 1) * BN, T);
      load_tile<BN>(s_v + (1 - stage) * kTileBytes, v, (j + 1) * BN, T);
    }
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();  // the stage is loaded
    if (j == 0) {
#pragma unroll
      for (int i = 0; i < DP / 16; i++)
        ldmatrix(r_q[i], s_q + chunk_read_offset(warp * 16 + lane % 16, i * 2 + lane / 16));
    }
    uint32_t const s_kj = s_k + stage * kTileBytes, s_vj = s_v + stage * kTileBytes;

    float s[BN / 8][4] = {};
#pragma unroll
    for (int i = 0; i < DP / 16; i++)
#pragma unroll
      for (int n = 0; n < BN / 8; n += 2) {
        uint32_t b[4];
        ldmatrix(b, s_kj + chunk_read_offset(n * 8 + lane % 8 + lane / 16 * 8, i * 2 + lane / 8 % 2));
        uint32_t const lo[2] = {b[0], b[1]}, hi[2] = {b[2], b[3]};
        mma_m16n8k16<bf16>(s[n], r_q[i], lo);
        mma_m16n8k16<bf16>(s[n + 1], r_q[i], hi);
      }

#pragma unroll
    for (int n = 0; n < BN / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int const col = j * BN + n * 8 + M16N8K16::C::col(lane, e), row = m0 + warp * 16 + M16N8K16::C::row(lane, e);
        s[n][e] = col <= row && col < T ? s[n][e] * scale : -kInfinity;
      }

    float correction[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float m = row_max[h];
#pragma unroll
      for (int n = 0; n < BN / 8; n++) m = fmaxf(m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      float const base = m == -kInfinity ? 0.0f : m;
      correction[h] = exp2_approx(row_max[h] - base);
      row_max[h] = m;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < BN / 8; n++) {
        s[n][2 * h] = exp2_approx(s[n][2 * h] - base);
        s[n][2 * h + 1] = exp2_approx(s[n][2 * h + 1] - base);
        sum += s[n][2 * h] + s[n][2 * h + 1];
      }
      row_sum[h] = row_sum[h] * correction[h] + sum;
    }
#pragma unroll
    for (int i = 0; i < DP / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) acc[i][e] *= correction[e / 2];

#pragma unroll
    for (int n = 0; n < BN / 16; n++) {
      uint32_t const p[4] = {pack<bf16>(s[2 * n][0], s[2 * n][1]), pack<bf16>(s[2 * n][2], s[2 * n][3]),
                             pack<bf16>(s[2 * n + 1][0], s[2 * n + 1][1]), pack<bf16>(s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
      for (int i = 0; i < DP / 8; i += 2) {
        uint32_t b[4];
        ldmatrix_trans(b, s_vj + chunk_read_offset(n * 16 + lane % 16, i + lane / 16));
        uint32_t const lo[2] = {b[0], b[1]}, hi[2] = {b[2], b[3]};
        mma_m16n8k16<bf16>(acc[i], p, lo);
        mma_m16n8k16<bf16>(acc[i + 1], p, hi);
      }
    }
    __syncthreads();  // the stage has been read
  }

#pragma unroll
  for (int h = 0; h < 2; h++) {
    row_sum[h] += __shfl_xor_sync(0xffffffffu, row_sum[h], 1);
    row_sum[h] += __shfl_xor_sync(0xffffffffu, row_sum[h], 2);
    int const row = m0 + warp * 16 + lane / 4 + h * 8;
    float const inverse = 1.0f / row_sum[h];
    if (row >= T) continue;
#pragma unroll
    for (int i = 0; i < DP / 8; i++) {
      int const col = i * 8 + lane % 4 * 2;
      if (col < D)
        *reinterpret_cast<uint32_t*>(o + (long long)row * D + col) =
            pack<bf16>(acc[i][2 * h] * inverse, acc[i][2 * h + 1] * inverse);
    }
    if (lane % 4 == 0) lse[row] = (row_max[h] + log2f(row_sum[h])) * kLn2;
  }
}
