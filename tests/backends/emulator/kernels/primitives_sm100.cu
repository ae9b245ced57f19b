// One small kernel for each primitive of sm_100a, every result written out.
#include "fence.cuh"
#include "mbarrier.cuh"
#include "pair.cuh"
#include "panels.cuh"
#include "swizzle.cuh"
#include "tcgen05.cuh"
#include "thread.cuh"
#include "types.cuh"

// ---- pairs of numbers

// out [3][128]: a · b + c, a + b, a · b
extern "C" __global__ void pairs(float2 const* a, float2 const* b, float2 const* c, float2* out) {
  int const i = threadIdx.x;
  out[i] = fma_pair(a[i], b[i], c[i]);
  out[128 + i] = add_pair(a[i], b[i]);
  out[256 + i] = mul_pair(a[i], b[i]);
}

// Columns of tensor memory for a block of 128 threads; the address of this warp's lanes. `place`: 4 bytes of shared
// memory.
__device__ __forceinline__ uint32_t allocate(unsigned char* place, int columns) {
  if (threadIdx.x < 32) {
    tcgen05_alloc(shared_address(place), columns);
    tcgen05_relinquish_alloc_permit();
  }
  __syncthreads();
  return *reinterpret_cast<uint32_t const*>(place) + (threadIdx.x / 32 * 32 << 16);
}

__device__ __forceinline__ void deallocate(uint32_t own, int columns) {
  tcgen05_fence_before_thread_sync();
  __syncthreads();
  if (threadIdx.x < 32) tcgen05_dealloc(own, columns);
}

// ---- tensor memory and registers: in [128][N] through columns of tensor memory and back

template <class T, int N>
__device__ __forceinline__ void there_and_back(uint32_t at, T const* in, T* out) {
  T there[N], back[N];
#pragma unroll
  for (int i = 0; i < N; i++) there[i] = in[threadIdx.x * N + i];
  tcgen05_st_32x32b(at, there);
  tcgen05_wait_st();
  tcgen05_ld_32x32b(back, at);
  tcgen05_wait_ld();
#pragma unroll
  for (int i = 0; i < N; i++) out[threadIdx.x * N + i] = back[i];
}

#define THERE_AND_BACK_KERNEL(name, T, N)                                                 \
  extern "C" __global__ void __launch_bounds__(128, 1) name(T const* in, T* out) {         \
    DYNAMIC_SHARED(smem);                                                                  \
    uint32_t const own = allocate(smem, 256);                                              \
    there_and_back<T, N>(own + 5, in, out);                                                \
    deallocate(own, 256);                                                                  \
  }
THERE_AND_BACK_KERNEL(tensor_memory_1, uint32_t, 1)
THERE_AND_BACK_KERNEL(tensor_memory_2, float, 2)
THERE_AND_BACK_KERNEL(tensor_memory_4, uint32_t, 4)
THERE_AND_BACK_KERNEL(tensor_memory_8, float, 8)
THERE_AND_BACK_KERNEL(tensor_memory_16, uint32_t, 16)
THERE_AND_BACK_KERNEL(tensor_memory_32, float, 32)
THERE_AND_BACK_KERNEL(tensor_memory_64, uint32_t, 64)
THERE_AND_BACK_KERNEL(tensor_memory_128, float, 128)

// ---- columns: every warp writes its lanes of two allocations, a column at a time, and reads 16 at once; out [128][96]

extern "C" __global__ void __launch_bounds__(128, 1) tensor_columns(uint32_t* out) {
  DYNAMIC_SHARED(smem);
  uint32_t const* const places = reinterpret_cast<uint32_t const*>(smem);
  if (threadIdx.x < 32) {
    tcgen05_alloc(shared_address(smem), 64);
    tcgen05_alloc(shared_address(smem) + 4, 32);
    tcgen05_relinquish_alloc_permit();
  }
  __syncthreads();
  uint32_t const lanes = threadIdx.x / 32 * 32 << 16;
#pragma unroll
  for (int c = 0; c < 96; c++) {
    uint32_t const value[1] = {threadIdx.x * 96 + c};
    tcgen05_st_32x32b(places[c / 64] + lanes + c % 64, value);
  }
  tcgen05_wait_st();
  uint32_t r[6][16];
#pragma unroll
  for (int i = 0; i < 6; i++) tcgen05_ld_32x32b(r[i], places[i / 4] + lanes + i % 4 * 16);
  tcgen05_wait_ld();
#pragma unroll
  for (int i = 0; i < 96; i++) out[threadIdx.x * 96 + i] = r[i / 16][i % 16];
  tcgen05_fence_before_thread_sync();
  __syncthreads();
  if (threadIdx.x < 32) {
    tcgen05_dealloc(places[0], 64);
    tcgen05_dealloc(places[1], 32);
  }
}

// ---- products: d [128][N] = a [128][64] b [64][N]; threads write operands to shared memory, swizzled

// The operand whose k begins at `k`; a K-major one has its `rows` along mn, an MN-major one 64 along k.
__device__ __forceinline__ uint64_t operand(uint32_t tile, int rows, int k, Swizzle swizzle, Major major) {
  int const span = swizzle_span(swizzle), width = span / 2, panel = rows * span;
  if (major == Major::kK)
    return tcgen05_advance(tcgen05_descriptor(tile, panel, 8 * span, swizzle), k / width * panel + k % width * 2);
  bool const plain = swizzle == Swizzle::kNone;
  return tcgen05_descriptor(tile + k * span, plain ? 8 * span : panel, plain ? panel : 8 * span, swizzle);
}

template <class T, int N, Swizzle SWIZZLE, Major A, Major B, bool A_IN_TENSOR_MEMORY>
__device__ __forceinline__ void multiply(unsigned char* smem, T const* a, T const* b, float* d) {
  constexpr int kRowsA = rows_of(128, A), kRowsB = rows_of(N, B);
  unsigned char* const tile_a = smem;
  unsigned char* const tile_b = smem + 16384;
  unsigned char* const place = smem + 49152;
  uint32_t const barrier = shared_address(place) + 8;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  uint32_t const own = allocate(place, 512), d_at = own + 3, a_at = own + 300;
  write_operands<T, 128, N, SWIZZLE, A, B>(tile_a, tile_b, a, b);
  fence_proxy_async();
  if constexpr (A_IN_TENSOR_MEMORY) {
    uint32_t row[32];
#pragma unroll
    for (int i = 0; i < 32; i++)
      row[i] = a[threadIdx.x * 64 + 2 * i].bits | uint32_t(a[threadIdx.x * 64 + 2 * i + 1].bits) << 16;
    tcgen05_st_32x32b(a_at, row);
    tcgen05_wait_st();
    tcgen05_fence_before_thread_sync();
  }
  __syncthreads();
  if (threadIdx.x < 32 && elect_one()) {
    constexpr uint32_t kInstruction = tcgen05_instruction<T, N, A, B>();
    tcgen05_fence_after_thread_sync();
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      uint64_t const b_k = operand(shared_address(tile_b), kRowsB, k, SWIZZLE, B);
      if constexpr (A_IN_TENSOR_MEMORY) tcgen05_mma(d_at, a_at + k / 2, b_k, kInstruction, k > 0);
      else tcgen05_mma(d_at, operand(shared_address(tile_a), kRowsA, k, SWIZZLE, A), b_k, kInstruction, k > 0);
    }
    tcgen05_commit(barrier);
  }
  mbarrier_wait(barrier, 0);
  tcgen05_fence_after_thread_sync();
#pragma unroll
  for (int n = 0; n < N; n += 8) {
    float r[8];
    tcgen05_ld_32x32b(r, d_at + n);
    tcgen05_wait_ld();
#pragma unroll
    for (int i = 0; i < 8; i++) d[threadIdx.x * N + n + i] = r[i];
  }
  deallocate(own, 512);
}

#define TCGEN05_KERNEL(name, T, N, SWIZZLE, A, B, A_IN_TENSOR_MEMORY)                              \
  extern "C" __global__ void __launch_bounds__(128, 1) name(T const* a, T const* b, float* d) {     \
    DYNAMIC_SHARED(smem);                                                                            \
    multiply<T, N, Swizzle::SWIZZLE, Major::A, Major::B, A_IN_TENSOR_MEMORY>(smem, a, b, d);         \
  }
TCGEN05_KERNEL(tcgen05_none, bf16, 64, kNone, kK, kK, false)
TCGEN05_KERNEL(tcgen05_32, bf16, 64, k32B, kK, kK, false)
TCGEN05_KERNEL(tcgen05_64, bf16, 64, k64B, kK, kK, false)
TCGEN05_KERNEL(tcgen05_128, bf16, 64, k128B, kK, kK, false)
TCGEN05_KERNEL(tcgen05_none_mn, bf16, 64, kNone, kMN, kMN, false)
TCGEN05_KERNEL(tcgen05_32_mn, bf16, 64, k32B, kMN, kMN, false)
TCGEN05_KERNEL(tcgen05_64_mn, bf16, 64, k64B, kMN, kMN, false)
TCGEN05_KERNEL(tcgen05_128_mn, bf16, 64, k128B, kMN, kMN, false)
TCGEN05_KERNEL(tcgen05_n16, fp16, 16, k32B, kK, kMN, false)
TCGEN05_KERNEL(tcgen05_n80, bf16, 80, k32B, kK, kMN, true)
TCGEN05_KERNEL(tcgen05_n256, fp16, 256, k128B, kK, kMN, true)
