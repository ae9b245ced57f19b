// A block of attention on wgmma: one thread of its last warpgroup loads, the others compute 64 rows of O each, for one
// row tile or for one after another.
#pragma once
#include "flash_attention/wgmma/output.cuh"
#include "flash_attention/wgmma/overlap.cuh"
#include "flash_attention/wgmma/posts.cuh"

// Global memory of a launch.
template <class Tile>
struct Tensors {
  PanelMaps q, o;
  typename Tile::Keys::Maps k, v;
  OutputRows<typename Tile::T> rows;  // rows of o, for packed sequences
  float* g_lse;
  int* ticket;  // ticket of persistent blocks
};

// Called by one thread, before the first copy.
template <class Tile>
__device__ __forceinline__ void prefetch(Tensors<Tile> const& of) {
  Tile::Keys::template prefetch<typename Tile::Rows>(of.k);
  Tile::Rows::prefetch(of.q);
  Tile::Keys::template prefetch<typename Tile::Values>(of.v);
}

template <class Tile>
__device__ __forceinline__ void set_scale(Consumer<Tile>& rows, float scale) { rows.scale = scale; }
template <class Tile>
__device__ __forceinline__ void set_scale(Consumer<Tile>& rows, Softcap scale) {
  rows.inner = scale.inner;
  rows.scale = scale.outer;
}

// Called before a row tile's first product.
template <class Tile>
__device__ __forceinline__ void start(Consumer<Tile>& rows, Work const& work, typename Tile::Keys const& keys,
                                      int parity) {
  rows.warpgroup = own_warpgroup();
  int const row = 64 * rows.warpgroup + M64K16::C::row(threadIdx.x % 128, 0);
  rows.query[0] = work.query(row);
  rows.query[1] = work.query(row + 8);
  rows.mask = keys.mask(work, rows.warpgroup);
  rows.softmax = {};
#pragma unroll
  for (int e = 0; e < Tile::kSummed / 2; ++e) rows.r_o[e] = 0;
  mbarrier_wait(rows.barriers.query_full(rows.warpgroup), parity);
}

// Processes all row tiles of the block, in the consumer warpgroups. `scale`: the result of scale_of.
template <class Tile, class Scale>
__device__ __forceinline__ void compute_all(unsigned char* smem, Posts<Tile> const& posts, Tensors<Tile> const& of,
                                            typename Tile::Keys const& keys, Sizes const& sizes, Scale scale) {
  Consumer<Tile> rows;
  rows.smem = shared_address(smem);
  rows.barriers = posts.barriers;
  set_scale(rows, scale);
#pragma unroll 1
  for (int n = 0; n == 0 || Tile::kPersistent; ++n) {
    Work const& work = posts.await(n);
    if (work.tiles == 0) break;
    start(rows, work, keys, n % 2);
    for (int tile = work.loaded; tile > work.tiles && Tile::kCluster > 1; --tile) rows.skip();
    if constexpr (Tile::kForeignValues) clear_neighbours(rows, keys, smem, work);
    attend(rows, work.tiles);
    float* g_lse = of.g_lse + (int64_t(work.sequence.batch) * sizes.heads + work.head) * sizes.seq_q;
    store_rows(of.o, of.rows, g_lse, smem, rows, work, sizes);
  }
}

// All threads of the block, or of all blocks of the cluster.
template <class Tile>
__device__ __forceinline__ void sync_all() {
  if constexpr (Tile::kCluster == 1)
    __syncthreads();
  else
    cluster_sync();
}

// Called by all threads.
template <class Tile, class Scale>
__device__ __forceinline__ void compute_block(unsigned char* smem, Tensors<Tile> const& of,
                                              typename Tile::Keys const& keys, Sizes const& sizes, Scale scale) {
  uint32_t const s = shared_address(smem);
  Barriers<Tile> const barriers{s + Tile::kBarriers};
  Schedule<Tile>& schedule = *reinterpret_cast<Schedule<Tile>*>(smem + Tile::kSchedule);
  Posts<Tile> const posts{reinterpret_cast<Work*>(smem + Tile::kWork), barriers};
  if (threadIdx.x == 0) init_barriers(barriers);
  if (threadIdx.x == 32) schedule = Schedule<Tile>(sizes);
  if (threadIdx.x == Tile::kConsumers) prefetch(of);
  sync_all<Tile>();  // barriers and schedule are initialized
  int const warpgroup = own_warpgroup();
  if (warpgroup == Tile::kWarpgroups) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    if (threadIdx.x == Tile::kConsumers) {
      Loader<Tile> loader{s, barriers, of.q, of.k, of.v};
      int* s_drawn = reinterpret_cast<int*>(smem + Tile::kDrawn);
      load_all(loader, posts, schedule, keys, {s_drawn, barriers, of.ticket});
    }
    if (Tile::kCluster > 1) __syncwarp();
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    compute_all(smem, posts, of, keys, sizes, scale);
  }
  if (Tile::kCluster > 1) cluster_sync();  // after this, no block arrives or copies here
}
