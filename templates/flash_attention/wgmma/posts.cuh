// How a block's loader gets row tiles, alone or with its cluster, and posts the next one to the warpgroups.
#pragma once
#include "atomic.cuh"
#include "flash_attention/panels/tile.cuh"

template <class Tile>
struct Posts {
  Work* s_work;  // the posted work items, [kPosts]
  Barriers<Tile> barriers;

  // The block's n-th row tile, in shared memory: it is kept throughout the loop over keys without occupying registers.
  __device__ __forceinline__ Work const& await(int n) const {
    mbarrier_wait(barriers.posted(n % Tile::kPosts), n / Tile::kPosts % 2);
    return s_work[n % Tile::kPosts];
  }
  // Called by the loader. The post is free: Q of the previous row tile was loaded, so O of the one before it is stored.
  __device__ __forceinline__ Work const& put(int post, Schedule<Tile> const& s_schedule, int i,
                                             typename Tile::Keys const& keys) const {
    s_schedule.locate_work(s_work[post], i, keys);
    mbarrier_arrive(barriers.posted(post));
    return s_work[post];
  }
};

// Row tile numbers, for blocks that get one after another as they become free. In a cluster the first block draws a
// ticket for all, whose row tiles are adjacent.
template <class Tile>
struct Tickets {
  static constexpr bool kSharesTickets = Tile::kPersistent && Tile::kCluster > 1;

  int* s_drawn;
  Barriers<Tile> barriers;
  int* counter;

  __device__ __forceinline__ int draw() const {
    if (!Tile::kPersistent || (kSharesTickets && cluster_rank() != 0)) return 0;
    return atomic_add_relaxed(reinterpret_cast<uint32_t*>(counter), 1);
  }
  // Broadcasts the first block's ticket for the n-th row tile to all blocks, which have read the previous ticket.
  __device__ __forceinline__ void broadcast(int n, int drawn) const {
    if (!kSharesTickets || cluster_rank() != 0) return;
    mbarrier_wait(barriers.read(), n % 2 ^ 1);
    for (int rank = 0; rank < Tile::kCluster; ++rank)
      store_async(map_shared_rank(shared_address(s_drawn), rank), uint32_t(drawn),
                  map_shared_rank(barriers.drawn(), rank));
  }
  // Waits for it in each block.
  __device__ __forceinline__ int await(int n, int drawn) const {
    if (!kSharesTickets) return drawn;
    mbarrier_arrive_expect_tx(barriers.drawn(), sizeof(int));
    mbarrier_wait(barriers.drawn(), n % 2);
    int const ticket = *s_drawn;
    mbarrier_arrive_cluster(map_shared_rank(barriers.read(), 0));
    return ticket;
  }
};

// Loads everything that the block computes: the row tile of its index; if persistent, then those given by tickets,
// starting at the grid size.
template <class Tile>
__device__ __forceinline__ void load_all(Loader<Tile>& loader, Posts<Tile> const& posts, Schedule<Tile> const& schedule,
                                         typename Tile::Keys const& keys, Tickets<Tile> const& tickets) {
  int i = blockIdx.x / Tile::kCluster;
#pragma unroll 1
  for (int n = 0;; ++n) {
    Work const& work = posts.put(n % Tile::kPosts, schedule, i, keys);
    if (work.tiles == 0) return;
    int const drawn = tickets.draw();  // its latency is hidden by loading tiles
    loader.load(work, keys, n % 2, [&] { tickets.broadcast(n, drawn); });
    if constexpr (!Tile::kPersistent) return;
    i = schedule.takers + tickets.await(n, drawn);
  }
}
