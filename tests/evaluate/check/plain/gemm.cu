// C = A B in tiles of 64 x 64, by inline PTX: A [m, 64], B [64, 64].
#include <cuda_fp16.h>
#include <stdint.h>

#define BM 64
#define BN 64
#define BK 32
#define STAGES 2
#define CP_ASYNC16(to, from, bytes) \
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes))
#define CP_COMMIT() asm volatile("cp.async.commit_group;\n" ::)
#define CP_WAIT(n) asm volatile("cp.async.wait_group %0;\n" ::"n"(n))

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

template <bool kTransposed>
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const void* p) {
  if (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}

__device__ __forceinline__ void mma16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(128)
    gemm(const __half* __restrict__ A, const __half* __restrict__ B, __half* __restrict__ C, int m) {
  constexpr int n = 64, k = 64;
  __shared__ __align__(16) __half s_a[STAGES][BM][BK + 8];
  __shared__ __align__(16) __half s_b[STAGES][BK][BN + 8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m0 = blockIdx.x * BM;
  const int warp_m = warp % 2 * 32, warp_n = warp / 2 * 32;
  float acc[2][4][4] = {};

  auto load = [&](int stage, int k0) {
    for (int i = threadIdx.x; i < BM * BK / 8; i += 128) {
      const int row = i / (BK / 8), column = i % (BK / 8) * 8;
      const bool inside = m0 + row < m;
      CP_ASYNC16(shared_address(&s_a[stage][row][column]), A + (inside ? m0 + row : 0) * k + k0 + column,
                 inside ? 16 : 0);
    }
    for (int i = threadIdx.x; i < BK * BN / 8; i += 128) {
      const int row = i / (BN / 8), column = i % (BN / 8) * 8;
      CP_ASYNC16(shared_address(&s_b[stage][row][column]), B + (k0 + row) * n + column, 16);
    }
    CP_COMMIT();
  };

  load(0, 0);
  for (int step = 0; step < k / BK; ++step) {
    if (step + 1 < k / BK) {
      load((step + 1) % STAGES, (step + 1) * BK);
      CP_WAIT(1);
    } else {
      CP_WAIT(0);
    }
    __syncthreads();
    const int stage = step % STAGES;
#pragma unroll
    for (int kk = 0; kk < BK; kk += 16) {
      uint32_t a[2][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) ldmatrix<false>(a[i], &s_a[stage][warp_m + i * 16 + lane % 16][kk + lane / 16 * 8]);
#pragma unroll
      for (int j = 0; j < 2; ++j) ldmatrix<true>(b[j], &s_b[stage][kk + lane % 16][warp_n + j * 16 + lane / 16 * 8]);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) mma16816(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m0 + warp_m + i * 16 + lane / 4 + half * 8, column = warp_n + j * 8 + lane % 4 * 2;
        if (row < m)
          *reinterpret_cast<__half2*>(&C[row * n + column]) = __floats2half2_rn(acc[i][j][2 * half], acc[i][j][2 * half + 1]);
      }
}
