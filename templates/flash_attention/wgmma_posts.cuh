// How a block's loader takes row tiles, and tells the warpgroups which one is next.
#pragma once
#include "atomic.cuh"
#include "flash_attention/wgmma_tile.cuh"

template <class Tile>
struct Posts {
  Work* s_work;  // [kPosts]
  Barriers<Tile> barriers;

  // The block's n-th row tile, in shared memory: it outlives the loop over keys without registers.
  __device__ __forceinline__ Work const& await(int n) const {
    mbarrier_wait(barriers.posted(n % Tile::kPosts), n / Tile::kPosts % 2);
    return s_work[n % Tile::kPosts];
  }
  // By the loader. The post is free: Q of the row tile before was loaded, so O of the one before that is stored.
  __device__ __forceinline__ Work const& put(int post, Schedule<Tile> const& s_schedule, int i) const {
    s_schedule.place(s_work[post], i);
    mbarrier_arrive(barriers.posted(post));
    return s_work[post];
  }
};

// All that the block computes: the row tile of its index; persistent, then what `ticket` says, from the grid's size on.
template <class Tile>
__device__ __forceinline__ void load_all(Loader<Tile>& loader, Posts<Tile> const& posts, Schedule<Tile> const& schedule,
                                         int* ticket) {
  int i = blockIdx.x / Tile::kCluster;
#pragma unroll 1
  for (int parity = 0;; parity ^= 1) {
    Work const& work = posts.put(parity, schedule, i);
    if (work.tiles == 0) return;
    int next = 0;  // the ticket comes while tiles are loaded
    if constexpr (Tile::kPersistent) next = atomic_add_relaxed(reinterpret_cast<uint32_t*>(ticket), 1);
    loader.load(work, parity);
    if constexpr (!Tile::kPersistent) return;
    i = schedule.blocks + next;
  }
}
