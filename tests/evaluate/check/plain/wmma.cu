// C = 2 A B in tiles of 32 x 64, by nvcuda::wmma: A [m, k], B [k, n], any sizes.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void gemm_wmma(const half* a, const half* b, float* c, int m, int n, int k) {
  __shared__ __align__(32) half s_a[32][48];
  __shared__ __align__(32) half s_b[16][80];
  __shared__ __align__(32) float s_c[32][72];
  const int warp_row = threadIdx.x / 64, warp_column = threadIdx.x / 32 % 2;
  const int row0 = blockIdx.y * 32, column0 = blockIdx.x * 64;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a_tile;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b_tile;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c_tile[2];
  for (int j = 0; j < 2; ++j) wmma::fill_fragment(c_tile[j], 0.0f);
  for (int k0 = 0; k0 < k; k0 += 16) {
    for (int i = threadIdx.x; i < 32 * 16; i += blockDim.x) {
      const int row = row0 + i / 16, column = k0 + i % 16;
      s_a[i / 16][i % 16] = row < m && column < k ? a[static_cast<size_t>(row) * k + column] : __float2half(0.0f);
    }
    for (int i = threadIdx.x; i < 16 * 64; i += blockDim.x) {
      const int row = k0 + i / 64, column = column0 + i % 64;
      s_b[i / 64][i % 64] = row < k && column < n ? b[static_cast<size_t>(row) * n + column] : __float2half(0.0f);
    }
    __syncthreads();
    wmma::load_matrix_sync(a_tile, &s_a[warp_row * 16][0], 48);
    for (int j = 0; j < 2; ++j) {
      wmma::load_matrix_sync(b_tile, &s_b[0][warp_column * 32 + j * 16], 80);
      wmma::mma_sync(c_tile[j], a_tile, b_tile, c_tile[j]);
    }
    __syncthreads();
  }
  for (int j = 0; j < 2; ++j) {
    for (int i = 0; i < c_tile[j].num_elements; ++i) c_tile[j].x[i] *= 2.0f;
    wmma::store_matrix_sync(&s_c[warp_row * 16][warp_column * 32 + j * 16], c_tile[j], 72, wmma::mem_row_major);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * 64; i += blockDim.x) {
    const int row = row0 + i / 64, column = column0 + i % 64;
    if (row < m && column < n) c[static_cast<size_t>(row) * n + column] = s_c[i / 64][i % 64];
  }
}
