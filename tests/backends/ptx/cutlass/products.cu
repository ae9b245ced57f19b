// CuTe's own products of one warpgroup: A [64][K] and B [N][K] written to shared memory through CuTe's layouts,
// multiplied through the descriptors that CuTe makes of them, D [64][N] to global memory; and the descriptors, A's and
// B's by turns.
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>

using namespace cute;
using bf16 = bfloat16_t;
using fp16 = half_t;

template <class Atom, class LayoutA, class LayoutB, bool kRegisters, int N, int K, class T>
__device__ void multiplied(T const* g_a, T const* g_b, float* g_d, uint64_t* g_descriptors) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int kBytesA = (cosize_v<LayoutA> * sizeof(T) + 1023) / 1024 * 1024;
  auto s_a = make_tensor(make_smem_ptr(reinterpret_cast<T*>(smem)), LayoutA{});
  auto s_b = make_tensor(make_smem_ptr(reinterpret_cast<T*>(smem + kBytesA)), LayoutB{});
  for (int i = threadIdx.x; i < 64 * K; i += 128) s_a(i / K, i % K) = g_a[i];
  for (int i = threadIdx.x; i < N * K; i += 128) s_b(i / K, i % K) = g_b[i];
  cutlass::arch::fence_view_async_shared();
  __syncthreads();
  auto mma = make_tiled_mma(Atom{});
  auto slice = mma.get_thread_slice(threadIdx.x);
  auto d = partition_fragment_C(mma, Shape<_64, Int<N>>{});
  auto b = slice.make_fragment_B(slice.partition_B(s_b));
  auto a = [&] {
    auto part = slice.partition_A(s_a);
    if constexpr (kRegisters) {
      auto found = make_fragment_like(part);
      copy(part, found);
      return found;
    } else {
      return slice.make_fragment_A(part);
    }
  }();
  warpgroup_fence_operand(d);
  warpgroup_arrive();
  mma.accumulate_ = GMMA::ScaleOut::Zero;
  CUTE_UNROLL
  for (int k = 0; k < K / 16; ++k) {
    gemm(mma, a(_, _, k), b(_, _, k), d);
    mma.accumulate_ = GMMA::ScaleOut::One;
    if constexpr (!kRegisters) g_descriptors[2 * k] = uint64_t(a(0, 0, k));
    g_descriptors[2 * k + 1] = uint64_t(b(0, 0, k));
  }
  warpgroup_commit_batch();
  warpgroup_wait<0>();
  warpgroup_fence_operand(d);
  copy(d, slice.partition_C(make_tensor(make_gmem_ptr(g_d), make_layout(Shape<_64, Int<N>>{}, LayoutRight{}))));
}

// Tiles as panels, each contiguous over all rows (K-major) or over all of K (MN-major).
template <GMMA::Major M>
using Order = std::conditional_t<M == GMMA::Major::K, Step<_1, _2>, Step<_2, _1>>;
#define TILE(T, ROWS, DEPTH, MAJOR, ATOM)                                                  \
  decltype(tile_to_shape(GMMA::Layout_##MAJOR##_##ATOM##_Atom<T>{}, Shape<Int<ROWS>, Int<DEPTH>>{}, \
                         Order<GMMA::Major::MAJOR>{}))
#define INPUTS_bf16 BF16BF16
#define INPUTS_fp16 F16F16
#define ATOM_OF(N, INPUTS, FROM) ATOM_PASTED(N, INPUTS, FROM)
#define ATOM_PASTED(N, INPUTS, FROM) SM90_64x##N##x16_F32##INPUTS##_##FROM

#define PRODUCT(FROM, T, N, DEPTH, MAJOR_A, ATOM_A, MAJOR_B, ATOM_B)                                                  \
  extern "C" __global__ void FROM##_##T##_##N##_##DEPTH##_##MAJOR_A##_##ATOM_A##_##MAJOR_B##_##ATOM_B(                \
      T const* a, T const* b, float* d, uint64_t* descriptors) {                                                      \
    multiplied<ATOM_OF(N, INPUTS_##T, FROM)<GMMA::Major::MAJOR_A, GMMA::Major::MAJOR_B>,                               \
               TILE(T, 64, DEPTH, MAJOR_A, ATOM_A), TILE(T, N, DEPTH, MAJOR_B, ATOM_B), #FROM[0] == 'R', N, DEPTH>(    \
        a, b, d, descriptors);                                                                                        \
  }

PRODUCT(SS, bf16, 8, 64, K, INTER, K, INTER)
PRODUCT(SS, bf16, 24, 48, K, SW32, K, SW32)
PRODUCT(SS, fp16, 40, 64, K, SW64, K, SW64)
PRODUCT(SS, bf16, 72, 64, K, SW128, K, SW128)
PRODUCT(SS, bf16, 40, 48, MN, INTER, MN, INTER)
PRODUCT(SS, fp16, 80, 48, MN, SW32, MN, SW32)
PRODUCT(SS, bf16, 96, 48, MN, SW64, MN, SW64)
PRODUCT(SS, fp16, 128, 48, MN, SW128, MN, SW128)
PRODUCT(RS, bf16, 72, 48, K, SW32, MN, INTER)
PRODUCT(RS, bf16, 80, 48, K, SW32, MN, SW32)
PRODUCT(RS, fp16, 96, 48, K, SW32, MN, SW64)
PRODUCT(RS, bf16, 128, 48, K, SW32, MN, SW128)
PRODUCT(RS, fp16, 24, 64, K, SW128, K, SW64)
