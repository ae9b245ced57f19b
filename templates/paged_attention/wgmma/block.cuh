// A block of paged attention on wgmma: one warp finds the row tiles to compute, one loads, and each of the other
// warpgroups computes 64 rows of O, from all keys or a share of them; for one row tile, or for one after another.
#pragma once
#include "atomic.cuh"
#include "flash_attention/split_keys/part.cuh"
#include "flash_attention/wgmma/block.cuh"
#include "paged_attention/batch.cuh"
#include "paged_attention/panels/loader.cuh"

// Stores the block's partial results over its share, as fp32 and not divided by sums: rows from index · BM on of part_o
// [.., D] and of part_rows.
template <class Tile>
__device__ __forceinline__ void store_share(float* part_o, float* part_rows, Consumer<Tile>& rows,
                                            PagedWork const& work) {
  int const thread = threadIdx.x % 128;
  int64_t const first = int64_t(work.index) * Tile::BM + 64 * rows.warpgroup;
  rows.softmax.reduce();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (rows.query[h] >= work.sequence.queries) continue;
    int64_t const row_index = first + M64K16::C::row(thread, 2 * h);
    if (thread % 4 == 0)
      reinterpret_cast<RowSum*>(part_rows)[row_index] = {rows.softmax.max[h], rows.softmax.sum[h]};
#pragma unroll
    for (int e = 2 * h; e < Tile::DV / 2; e += 4)
      *reinterpret_cast<float2*>(part_o + row_index * Tile::DV + M64K16::C::col(thread, e)) =
          make_float2(rows.r_o[e], rows.r_o[e + 1]);
  }
}

// The ticket with which persistent blocks get row tiles, and the destination of parts of O if the block has only a
// share of the keys.
struct Exchange {
  int* ticket;
  float *part_o, *part_rows;
};

// A block's work items in shared memory: the current one, and the next.
template <class Tile>
struct WorkPosts {
  PagedWork* s_work;  // the posted work items, [2]
  Barriers<Tile> barriers;

  __device__ __forceinline__ PagedWork const& await(int n) const {
    if (Tile::kPersistentByTicket) mbarrier_wait(barriers.posted(n % 2), n / 2 % 2);
    return s_work[n % 2];
  }
  // Executed by one warp of a persistent block, after the first row tile: gets row tiles by tickets, from the grid's
  // size on. The slot of a work item is free when Q of the next is loaded, since its O has then been stored.
  __device__ __forceinline__ void find_all(Batch<Tile> const& batch, typename Tile::Keys const& keys,
                                           int* ticket) const {
    int const lane = threadIdx.x % 32;
#pragma unroll 1
    for (int n = 0;; ++n) {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(barriers.posted(n % 2));
      if (s_work[n % 2].tiles == 0) return;
      int const drawn = lane == 0 ? int(atomic_add_relaxed(reinterpret_cast<uint32_t*>(ticket), 1)) : 0;
      mbarrier_wait(barriers.read(), n % 2);
      batch.find(s_work[(n + 1) % 2], gridDim.x + __shfl_sync(0xffffffff, drawn, 0), keys);
    }
  }
};

// Executed by the loading warp.
template <class Tile>
__device__ __forceinline__ void load_all(PageLoader<Tile>& loader, WorkPosts<Tile> const& posts) {
#pragma unroll 1
  for (int n = 0; n == 0 || Tile::kPersistentByTicket; ++n) {
    PagedWork const& work = posts.await(n);
    if (work.tiles == 0) break;
    if (Tile::kPersistentByTicket) __syncwarp();  // all lanes have read the previous work item, whose slot becomes free
    loader.load(work, n % 2);
  }
}

// Executed by the consumer warpgroups. `scale`: the result of scale_of.
template <class Tile, class Scale>
__device__ __forceinline__ void compute_all(unsigned char* smem, WorkPosts<Tile> const& posts, Tensors<Tile> const& of,
                                            Exchange const& exchange, typename Tile::Keys const& keys,
                                            Sizes const& sizes, Scale scale) {
  Consumer<Tile> rows;
  rows.smem = shared_address(smem);
  rows.barriers = posts.barriers;
  set_scale(rows, scale);
#pragma unroll 1
  for (int n = 0; n == 0 || Tile::kPersistentByTicket; ++n) {
    PagedWork const& work = posts.await(n);
    if (work.tiles == 0) break;
    start(rows, work, keys, n % 2);
    clear_neighbours(rows, keys, smem, work);
    attend(rows, work.tiles);
    if (Tile::kSplits > 1 && work.parts > 1) return store_share(exchange.part_o, exchange.part_rows, rows, work);
    float* g_lse = of.g_lse + (int64_t(work.sequence.batch) * sizes.heads + work.head) * sizes.seq_q;
    store_rows(of.o, of.rows, g_lse, smem, rows, work, sizes);
    if constexpr (Tile::kPersistentByTicket) {
      named_barrier_sync(8 + rows.warpgroup, 128);  // all have read O in the shared memory of Q
      if (threadIdx.x % 128 == 0) mbarrier_arrive(rows.barriers.query_empty(rows.warpgroup));
    }
  }
}

// Called by all threads. `tables`: tables of all sequences, `table_stride` apart.
template <class Tile, class Scale>
__device__ __forceinline__ void run_block(unsigned char* smem, Batch<Tile> const& batch, Tensors<Tile> const& of,
                                          Exchange const& exchange, typename Tile::Keys const& keys, Table tables,
                                          int64_t table_stride, Scale scale) {
  static_assert(Tile::kWork + 2 * int(sizeof(PagedWork)) <= Tile::kSharedBytes, "work lies where a dense block's does");
  Barriers<Tile> const barriers{shared_address(smem) + Tile::kBarriers};
  WorkPosts<Tile> const posts{reinterpret_cast<PagedWork*>(smem + Tile::kWork), barriers};
  constexpr int kLoads = Tile::kConsumers / 32, kFinds = kLoads + 1;  // the loading warp, and the warp that finds work
  int const warp = threadIdx.x / 32;
  if (threadIdx.x == 0) init_barriers(barriers);
  if (threadIdx.x == 32 * kLoads) prefetch(of);
  if (warp == kFinds) batch.find(posts.s_work[0], blockIdx.x, keys);
  __syncthreads();  // barriers and the first work item are initialized
  if (!Tile::kPersistentByTicket && posts.s_work[0].tiles == 0) return;
  if (own_warpgroup() == Tile::kWarpgroups) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    if (Tile::kPersistentByTicket && warp == kFinds) posts.find_all(batch, keys, exchange.ticket);
    if (warp == kLoads) {
      PageLoader<Tile> loader{{shared_address(smem), barriers, of.q, of.k, of.v}, keys, tables, table_stride};
      load_all(loader, posts);
    }
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    Sizes const sizes{batch.sequences, batch.heads, batch.kv_heads, batch.seq_q, 0};
    compute_all(smem, posts, of, exchange, keys, sizes, scale);
  }
}
