// CuTe's own products of sm_100a: A [M][K] and B [N][K] written to shared memory through CuTe's layouts, or A to tensor
// memory through its copies, multiplied through CuTe's descriptors, D [M][N] brought back through its copies.
#include <cute/arch/tmem_allocator_sm100.hpp>
#include <cute/atom/copy_traits_sm100.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/mma_traits_sm100.hpp>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>

using namespace cute;
using bf16 = bfloat16_t;
using fp16 = half_t;
using fp32 = float;
using tf32 = tfloat32_t;
using Barrier = cutlass::arch::ClusterBarrier;
constexpr int kColumns = 512;

template <class Atom, class Load, class LayoutA, class LayoutB, bool kTensorA, int M, int N, int K, class T, class C>
__device__ void multiplied(T const* g_a, T const* g_b, C* g_d) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ alignas(16) uint64_t barrier;
  __shared__ uint32_t address;
  constexpr int kBytesA = (cosize_v<LayoutA> * sizeof(T) + 1023) / 1024 * 1024;
  auto s_a = make_tensor(make_smem_ptr(reinterpret_cast<T*>(smem)), LayoutA{});
  auto s_b = make_tensor(make_smem_ptr(reinterpret_cast<T*>(smem + kBytesA)), LayoutB{});
  auto mma = make_tiled_mma(Atom{});
  auto slice = mma.get_slice(0);
  auto rows_a = make_tensor(make_gmem_ptr(g_a), make_layout(Shape<Int<M>, Int<K>>{}, LayoutRight{}));
  auto rows_d = make_tensor(make_gmem_ptr(g_d), make_layout(Shape<Int<M>, Int<N>>{}, LayoutRight{}));
  bool const first = threadIdx.x < 32;
  TMEM::Allocator1Sm allocator;
  if (first) allocator.allocate(kColumns, &address);
  if (threadIdx.x == 0) reinterpret_cast<Barrier&>(barrier).init(1);
  for (int i = threadIdx.x; i < M * K; i += 128) s_a(i / K, i % K) = g_a[i];
  for (int i = threadIdx.x; i < N * K; i += 128) s_b(i / K, i % K) = g_b[i];
  cutlass::arch::fence_view_async_shared();
  __syncthreads();
  auto d = slice.make_fragment_C(slice.partition_C(rows_d));
  d.data() = address;
  auto b = slice.make_fragment_B(slice.partition_B(s_b));
  auto a = [&] {
    if constexpr (kTensorA) {
      auto part = slice.partition_A(rows_a);
      auto found = slice.make_fragment_A(part);
      found.data() = address + 256;
      auto copier = make_tmem_copy(SM100_TMEM_STORE_32dp32b8x{}, found).get_slice(threadIdx.x);
      auto source = copier.partition_S(part);
      auto held = make_fragment_like(source);
      copy(source, held);
      copy(make_tmem_copy(SM100_TMEM_STORE_32dp32b8x{}, found), held, copier.partition_D(found));
      return found;
    } else {
      return slice.make_fragment_A(slice.partition_A(s_a));
    }
  }();
  cutlass::arch::fence_view_async_tmem_store();
  __syncthreads();
  if (first) {
    mma.accumulate_ = UMMA::ScaleOut::Zero;
    CUTE_UNROLL
    for (int k = 0; k < size<2>(b); ++k) {
      gemm(mma, a(_, _, k), b(_, _, k), d);
      mma.accumulate_ = UMMA::ScaleOut::One;
    }
    cutlass::arch::umma_arrive(&barrier);
  }
  reinterpret_cast<Barrier&>(barrier).wait(0);
  auto loader = make_tmem_copy(Load{}, d);
  auto lane = loader.get_slice(threadIdx.x);
  auto to = lane.partition_D(slice.partition_C(rows_d));
  auto held = make_tensor<C>(shape(to));
  copy(loader, lane.partition_S(d), held);
  cutlass::arch::fence_view_async_tmem_load();
  copy(held, to);
  __syncthreads();
  if (first) {
    allocator.release_allocation_lock();
    allocator.free(address, kColumns);
  }
}

// Tiles as panels, each contiguous over all rows (K-major) or over all of K (MN-major); of tf32 the other way.
template <class T, UMMA::Major M>
using Order = std::conditional_t<(M == UMMA::Major::K) != std::is_same_v<T, tf32>, Step<_1, _2>, Step<_2, _1>>;
#define TILE(T, ROWS, DEPTH, MAJOR, ATOM)                                                           \
  decltype(tile_to_shape(UMMA::Layout_##MAJOR##_##ATOM##_Atom<T>{}, Shape<Int<ROWS>, Int<DEPTH>>{}, \
                         Order<T, UMMA::Major::MAJOR>{}))
#define ATOM_bf16 F16BF16
#define ATOM_fp16 F16BF16
#define ATOM_tf32 TF32
#define ATOM_OF(INPUTS, FROM) ATOM_PASTED(INPUTS, FROM)
#define ATOM_PASTED(INPUTS, FROM) SM100_MMA_##INPUTS##_##FROM

#define NAME(FROM, T, C, M, N, DEPTH, MAJOR_A, ATOM_A, MAJOR_B, ATOM_B, LOAD) \
  FROM##_##T##_##C##_##M##_##N##_##DEPTH##_##MAJOR_A##_##ATOM_A##_##MAJOR_B##_##ATOM_B##_##LOAD
#define PRODUCT(FROM, T, C, M, N, DEPTH, MAJOR_A, ATOM_A, MAJOR_B, ATOM_B, LOAD)                               \
  extern "C" __global__ void NAME(FROM, T, C, M, N, DEPTH, MAJOR_A, ATOM_A, MAJOR_B, ATOM_B, LOAD)(            \
      T const* a, T const* b, C* d) {                                                                          \
    multiplied<ATOM_OF(ATOM_##T, FROM)<T, T, C, M, N, UMMA::Major::MAJOR_A, UMMA::Major::MAJOR_B>,             \
               SM100_TMEM_LOAD_##LOAD, TILE(T, M, DEPTH, MAJOR_A, ATOM_A), TILE(T, N, DEPTH, MAJOR_B, ATOM_B), \
               #FROM[0] == 'T', M, N, DEPTH>(a, b, d);                                                         \
  }

PRODUCT(SS, bf16, fp32, 128, 16, 64, K, INTER, K, INTER, 32dp32b16x)
PRODUCT(SS, bf16, fp32, 128, 48, 48, K, SW32, K, SW32, 32dp32b8x)
PRODUCT(SS, fp16, fp32, 128, 80, 64, K, SW64, K, SW64, 16dp256b2x)
PRODUCT(SS, bf16, fp32, 128, 96, 64, K, SW128, K, SW128, 16dp128b4x)
PRODUCT(SS, bf16, fp32, 128, 32, 48, MN, INTER, MN, INTER, 16dp64b8x)
PRODUCT(SS, fp16, fp32, 128, 80, 48, MN, SW32, MN, SW32, 16dp32b8x)
PRODUCT(SS, bf16, fp32, 128, 96, 48, MN, SW64, MN, SW64, 32dp32b32x)
PRODUCT(SS, fp16, fp32, 128, 128, 48, MN, SW128, MN, SW128, 32dp32b64x)
PRODUCT(SS, bf16, fp32, 64, 8, 64, K, SW128, K, SW128, 16dp256b1x)
PRODUCT(SS, bf16, fp32, 64, 72, 64, K, SW128, K, SW128, 16dp128b2x)
PRODUCT(SS, fp16, fp32, 64, 64, 48, MN, SW128, MN, SW64, 16dp64b16x)
PRODUCT(SS, fp16, fp32, 64, 256, 32, K, SW64, MN, SW128, 16dp32b32x)
PRODUCT(SS, fp16, fp16, 128, 64, 64, K, SW128, MN, SW128, 32dp32b32x_16b)
PRODUCT(SS, fp16, fp16, 64, 64, 64, K, SW128, MN, SW128, 16dp256b2x_16b)
PRODUCT(SS, tf32, fp32, 128, 48, 32, K, SW128, K, SW64, 32dp32b16x)
PRODUCT(SS, tf32, fp32, 64, 64, 32, MN, SW128_32B, MN, SW128_32B, 16dp256b4x)
PRODUCT(TS, bf16, fp32, 128, 64, 64, K, SW128, K, SW128, 32dp32b16x)
PRODUCT(TS, fp16, fp32, 128, 96, 32, K, SW64, MN, SW64, 32dp32b32x)
