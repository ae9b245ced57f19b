// One small kernel for each primitive of sm_90, every result written out.
#include "atomic.cuh"
#include "bulk.cuh"
#include "bulk_reduce.cuh"
#include "fence.cuh"
#include "fragment.cuh"
#include "ldmatrix.cuh"
#include "mbarrier.cuh"
#include "panels.cuh"
#include "register.cuh"
#include "swizzle.cuh"
#include "thread.cuh"
#include "tma.cuh"
#include "types.cuh"
#include "wgmma.cuh"

// ---- stmatrix: in[lane][4]; out[variant][32][8]: x1, x2, x4, and the same transposed

template <int N, bool TRANS>
__device__ __forceinline__ void store_and_write(unsigned char* smem, uint32_t const* in, uint16_t* out) {
  int const lane = threadIdx.x;
  uint32_t r[N];
  for (int i = 0; i < N; i++) r[i] = in[lane * 4 + i];
  uint32_t const address = shared_address(smem) + lane * 16;
  if constexpr (TRANS) stmatrix_trans(address, r);
  else stmatrix(address, r);
  __syncwarp();
  uint16_t const* const row = reinterpret_cast<uint16_t const*>(smem + lane * 16);
  for (int i = 0; i < 8; i++) out[lane * 8 + i] = lane < 8 * N ? row[i] : 0;
  __syncwarp();
}

extern "C" __global__ void store_matrices(uint32_t const* in, uint16_t* out) {
  DYNAMIC_SHARED(smem);
  store_and_write<1, false>(smem, in, out);
  store_and_write<2, false>(smem, in, out + 256);
  store_and_write<4, false>(smem, in, out + 512);
  store_and_write<1, true>(smem, in, out + 768);
  store_and_write<2, true>(smem, in, out + 1024);
  store_and_write<4, true>(smem, in, out + 1280);
}

// ---- mbarrier: warp 0 fills two stages in turn, warp 1 empties them; in, out [rounds][32]

extern "C" __global__ void pipeline(int const* in, int* out, int rounds) {
  DYNAMIC_SHARED(smem);
  int* const stages = reinterpret_cast<int*>(smem);
  uint32_t const full = shared_address(smem) + 256, empty = full + 16;
  int const lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) {
      mbarrier_init(full + 8 * i, 32);
      mbarrier_init(empty + 8 * i, 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  for (int round = 0; round < rounds; round++) {
    int const stage = round % 2, phase = round / 2 % 2;
    if (threadIdx.x < 32) {
      mbarrier_wait(empty + 8 * stage, phase ^ 1);
      stages[stage * 32 + lane] = in[round * 32 + lane];
      mbarrier_arrive(full + 8 * stage);
    } else {
      while (!mbarrier_test_wait(full + 8 * stage, phase)) continue;
      out[round * 32 + 31 - lane] = stages[stage * 32 + lane];
      mbarrier_arrive(empty + 8 * stage);
    }
  }
}

// ---- bulk copies: 512 bytes there, doubled, and back

extern "C" __global__ void bulk_copy(int const* in, int* out) {
  DYNAMIC_SHARED(smem);
  int* const data = reinterpret_cast<int*>(smem);
  uint32_t const s_data = shared_address(smem), barrier = s_data + 1024;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_expect_tx(barrier, 512);
    cp_async_bulk(s_data, in, 512, barrier);
    mbarrier_arrive(barrier);
  }
  mbarrier_wait(barrier, 0);
  data[threadIdx.x] *= 2;
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    cp_async_bulk_store(out, s_data, 512);
    cp_async_bulk_commit();
    cp_async_bulk_wait_read<0>();
    mbarrier_inval(barrier);
  }
}

// ---- sums of the copy engine: blocks add rows of in [blocks][128], one after another, to out [128]; turn, then ticket
// [2]

extern "C" __global__ void add_in_turn(float const* in, float* out, int* turn) {
  DYNAMIC_SHARED(smem);
  int* const s_own = reinterpret_cast<int*>(smem + 512);
  if (threadIdx.x == 0) *s_own = atomic_add_relaxed(reinterpret_cast<uint32_t*>(turn + 1), 1);
  __syncthreads();
  int const own = *s_own;  // in the order in which blocks begin
  reinterpret_cast<float*>(smem)[threadIdx.x] = in[own * 128 + threadIdx.x];
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  while (load_acquire(turn) != own) backoff();
  fence_proxy_async_global();
  if (own == 0)
    cp_async_bulk_store(out, shared_address(smem), 512);
  else
    cp_async_bulk_add(out, shared_address(smem), 512);
  cp_async_bulk_commit();
  cp_async_bulk_wait<0>();
  store_release(turn, own + 1);
}

// ---- TMA: a box is loaded, its bytes are written out as they lie in shared memory, and stored by another map

extern "C" __global__ void tensor_copy(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to,
                                       uint32_t* raw, int bytes, int rank, int c0, int c1, int c2) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_box = shared_address(smem), barrier = s_box + 32768;
  bool const leads = threadIdx.x == 0;
  if (leads) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    tma_prefetch(&from);
  }
  __syncthreads();
  if (leads) {
    mbarrier_arrive_expect_tx(barrier, bytes);
    if (rank == 1) tma_load(s_box, &from, barrier, c0);
    if (rank == 2) tma_load(s_box, &from, barrier, c0, c1);
    if (rank == 3) tma_load(s_box, &from, barrier, c0, c1, c2);
    if (rank == 4) tma_load(s_box, &from, barrier, c0, c1, c2, 0);
    if (rank == 5) tma_load(s_box, &from, barrier, c0, c1, c2, 0, 0);
  }
  mbarrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) raw[i] = reinterpret_cast<uint32_t const*>(smem)[i];
  __syncthreads();
  if (leads) {
    if (rank == 1) tma_store(&to, s_box, c0);
    if (rank == 2) tma_store(&to, s_box, c0, c1);
    if (rank == 3) tma_store(&to, s_box, c0, c1, c2);
    if (rank == 4) tma_store(&to, s_box, c0, c1, c2, 0);
    if (rank == 5) tma_store(&to, s_box, c0, c1, c2, 0, 0);
    cp_async_bulk_commit();
    cp_async_bulk_wait<0>();
  }
}

// ---- wgmma: d [64][N] = a [64][64] b [64][N]; operands are written to shared memory by threads, swizzled

// The operand whose k begins at `k`; a K-major one has its `rows` along mn, an MN-major one 64 along k.
__device__ __forceinline__ uint64_t operand(uint32_t tile, int rows, int k, Swizzle swizzle, Major major) {
  int const span = swizzle_span(swizzle), width = span / 2, panel = rows * span;
  if (major == Major::kK)
    return wgmma_descriptor(tile + k / width * panel + k % width * 2, panel, 8 * span, swizzle);
  bool const plain = swizzle == Swizzle::kNone;
  return wgmma_descriptor(tile + k * span, plain ? 8 * span : panel, plain ? panel : 8 * span, swizzle);
}

template <class T, int N, Swizzle SWIZZLE, Major A, Major B, bool A_IN_REGISTERS>
__device__ __forceinline__ void multiply(unsigned char* smem, T const* a, T const* b, float* d) {
  constexpr int kRowsA = 64, kRowsB = rows_of(N, B);
  unsigned char* const tile_a = smem;
  unsigned char* const tile_b = smem + 16384;
  write_operands<T, 64, N, SWIZZLE, A, B>(tile_a, tile_b, a, b);
  fence_proxy_async();
  __syncthreads();
  float r_d[N / 2];
  uint32_t r_a[4][4];
  for (int k = 0; k < 4; k++)
    for (int i = 0; i < 4; i++) {
      auto const bits = [&](int e) -> uint32_t {
        return a[M64K16::A::row(threadIdx.x, e) * 64 + k * 16 + M64K16::A::col(threadIdx.x, e)].bits;
      };
      r_a[k][i] = bits(2 * i) | bits(2 * i + 1) << 16;
    }
  fence_registers(r_d);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint64_t const b_k = operand(shared_address(tile_b), kRowsB, k * 16, SWIZZLE, B);
    if constexpr (A_IN_REGISTERS) wgmma_m64k16<T, B>(r_d, r_a[k], b_k, k > 0);
    else wgmma_m64k16<T, A, B>(r_d, operand(shared_address(tile_a), kRowsA, k * 16, SWIZZLE, A), b_k, k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  fence_registers(r_d);
  for (int e = 0; e < N / 2; e++) d[M64K16::C::row(threadIdx.x, e) * N + M64K16::C::col(threadIdx.x, e)] = r_d[e];
}

#define WGMMA_KERNEL(name, T, N, SWIZZLE, A, B, A_IN_REGISTERS)                                      \
  extern "C" __global__ void __launch_bounds__(128, 1) name(T const* a, T const* b, float* d) {     \
    DYNAMIC_SHARED(smem);                                                                            \
    multiply<T, N, Swizzle::SWIZZLE, Major::A, Major::B, A_IN_REGISTERS>(smem, a, b, d);             \
  }
WGMMA_KERNEL(wgmma_none, bf16, 64, kNone, kK, kK, false)
WGMMA_KERNEL(wgmma_32, bf16, 64, k32B, kK, kK, false)
WGMMA_KERNEL(wgmma_64, bf16, 64, k64B, kK, kK, false)
WGMMA_KERNEL(wgmma_128, bf16, 64, k128B, kK, kK, false)
WGMMA_KERNEL(wgmma_none_mn, bf16, 64, kNone, kMN, kMN, false)
WGMMA_KERNEL(wgmma_32_mn, bf16, 64, k32B, kMN, kMN, false)
WGMMA_KERNEL(wgmma_64_mn, bf16, 64, k64B, kMN, kMN, false)
WGMMA_KERNEL(wgmma_128_mn, bf16, 64, k128B, kMN, kMN, false)
WGMMA_KERNEL(wgmma_n8, fp16, 8, k128B, kK, kK, false)
WGMMA_KERNEL(wgmma_n72, bf16, 72, k32B, kK, kMN, true)
WGMMA_KERNEL(wgmma_n256, fp16, 256, k128B, kK, kMN, true)
