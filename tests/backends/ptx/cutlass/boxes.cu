// Boxes of TMA in tiles of CuTe's layouts: read through the layout, multiplied through CuTe's descriptors, stored,
// added.
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>

using namespace cute;
using bf16 = bfloat16_t;
using Barrier = cutlass::arch::ClusterTransactionBarrier;
constexpr auto kHint = uint64_t(TMA::CacheHintSm90::EVICT_NORMAL);

struct Storage {
  alignas(1024) bf16 a[64 * 64];
  alignas(1024) bf16 b[64 * 128];
  alignas(1024) bf16 c[64 * 64];
  alignas(1024) float sums[64 * 32];
  alignas(8) uint64_t barrier;
};

__device__ Storage& storage() {
  extern __shared__ __align__(1024) unsigned char smem[];
  return *reinterpret_cast<Storage*>(smem);
}

__device__ Barrier& begun_barrier() {
  auto& barrier = reinterpret_cast<Barrier&>(storage().barrier);
  if (threadIdx.x == 0) {
    barrier.init(1);
    cutlass::arch::fence_barrier_init();
  }
  return barrier;
}

// out [64][64]: the box at (row, col), loaded in panels of W columns, as CuTe's layout finds it.
template <class Layout, GMMA::Major kMajor, int W>
__device__ void loaded(TmaDescriptor const& map, bf16* out, int row, int col) {
  auto& s = storage();
  auto& barrier = begun_barrier();
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier.arrive_and_expect_tx(sizeof(s.a));
    for (int p = 0; p < 64 / W; ++p)
      SM90_TMA_LOAD_2D::copy(&map, &s.barrier, kHint, s.a + 64 * W * p, col + W * p, row);
  }
  barrier.wait(0);
  auto tile = make_tensor(make_smem_ptr(s.a), Layout{});
  for (int i = threadIdx.x; i < 64 * 64; i += 128)
    out[i] = kMajor == GMMA::Major::K ? tile(i / 64, i % 64) : tile(i % 64, i / 64);
}

using OrderK = Step<_1, _2>;
using OrderMN = Step<_2, _1>;
#define LOADED(MAJOR, ATOM, W)                                                                                       \
  extern "C" __global__ void load_##MAJOR##_##W(const __grid_constant__ TmaDescriptor map, bf16* out, int row,       \
                                                int col) {                                                           \
    loaded<decltype(tile_to_shape(GMMA::Layout_##MAJOR##_##ATOM##_Atom<bf16>{}, Shape<_64, _64>{}, Order##MAJOR{})), \
           GMMA::Major::MAJOR, W>(map, out, row, col);                                                               \
  }
LOADED(K, INTER, 8)
LOADED(K, SW32, 16)
LOADED(K, SW64, 32)
LOADED(K, SW128, 64)
LOADED(MN, INTER, 8)
LOADED(MN, SW32, 16)
LOADED(MN, SW64, 32)
LOADED(MN, SW128, 64)

// d [128][128] = a [128][64] b [64][128]: of two blocks each loads its rows of a, and half of b for both. c is d's
// first 64 columns as bf16, stored by TMA.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
    multicast(const __grid_constant__ TmaDescriptor map_a, const __grid_constant__ TmaDescriptor map_b,
              const __grid_constant__ TmaDescriptor map_c, float* d) {
  auto& s = storage();
  auto& barrier = begun_barrier();
  int const rank = block_rank_in_cluster();
  cluster_arrive_relaxed();
  cluster_wait();
  if (threadIdx.x == 0) {
    barrier.arrive_and_expect_tx(sizeof(s.a) + sizeof(s.b));
    SM90_TMA_LOAD_2D::copy(&map_a, &s.barrier, kHint, s.a, 0, 64 * rank);
    SM90_TMA_LOAD_MULTICAST_2D::copy(&map_b, &s.barrier, uint16_t(3), kHint, s.b + 64 * 64 * rank, 64 * rank, 0);
  }
  barrier.wait(0);
  auto tile = tile_to_shape(GMMA::Layout_K_SW128_Atom<bf16>{}, Shape<_64, _64>{});
  auto tile_b = tile_to_shape(GMMA::Layout_MN_SW128_Atom<bf16>{}, Shape<_128, _64>{}, OrderMN{});
  auto mma = make_tiled_mma(SM90_64x128x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::MN>{});
  auto slice = mma.get_thread_slice(threadIdx.x);
  auto acc = partition_fragment_C(mma, Shape<_64, _128>{});
  auto a = slice.make_fragment_A(slice.partition_A(make_tensor(make_smem_ptr(s.a), tile)));
  auto b = slice.make_fragment_B(slice.partition_B(make_tensor(make_smem_ptr(s.b), tile_b)));
  warpgroup_fence_operand(acc);
  warpgroup_arrive();
  mma.accumulate_ = GMMA::ScaleOut::Zero;
  CUTE_UNROLL
  for (int k = 0; k < 4; ++k) {
    gemm(mma, a(_, _, k), b(_, _, k), acc);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_batch();
  warpgroup_wait<0>();
  warpgroup_fence_operand(acc);
  auto rows = make_tensor(make_gmem_ptr(d + 64 * 128 * rank), make_layout(Shape<_64, _128>{}, LayoutRight{}));
  copy(acc, slice.partition_C(rows));
  auto s_c = make_tensor(make_smem_ptr(s.c), tile);
  auto place = slice.partition_C(make_identity_tensor(Shape<_64, _128>{}));
  CUTE_UNROLL
  for (int i = 0; i < size(acc); ++i)
    if (get<1>(place(i)) < 64) s_c(get<0>(place(i)), get<1>(place(i))) = bf16(acc(i));
  tma_store_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    SM90_TMA_STORE_2D::copy(&map_c, s.c, 0, 64 * rank);
    tma_store_arrive();
    tma_store_wait<0>();
  }
  cluster_arrive_relaxed();
  cluster_wait();
}

// The tensor of `map` += x [64][32].
extern "C" __global__ void added(const __grid_constant__ TmaDescriptor map, float const* x) {
  auto& s = storage();
  auto tile = make_tensor(make_smem_ptr(s.sums), tile_to_shape(GMMA::Layout_K_SW128_Atom<float>{}, Shape<_64, _32>{}));
  for (int i = threadIdx.x; i < 64 * 32; i += 128) tile(i / 32, i % 32) = x[i];
  tma_store_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    SM90_TMA_REDUCE_ADD_2D::copy(&map, s.sums, 0, 0);
    tma_store_arrive();
    tma_store_wait<0>();
  }
}
