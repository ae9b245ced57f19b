// Clusters: ranks, the cluster barrier, and distributed shared memory.
#include "cluster.h"

#include <algorithm>

#include "bulk.h"
#include "collective.h"
#include "memory.h"
#include "report.h"
#include "scheduler.h"
#include "tcgen05.h"

namespace emulator {

namespace {

constexpr int kRankShift = 24;  // a mapped address holds rank + 1 above the block's shared address

int alive_threads(Cluster const& cluster) {
  int alive = 0;
  for (Block const* member : cluster.blocks) alive += member->alive;
  return alive;
}

// Joins each block's threads and publishes the result to all blocks.
void join_blocks(Cluster& cluster) {
  std::vector<Publication> news;
  for (Block* member : cluster.blocks)
    if (RowRef row = member->cluster_arriving.take()) news.push_back({member->linear, row});
  for (Block* member : cluster.blocks) member->cluster_known = joined_across(member->linear, news);
}

void release(Cluster& cluster) {
  if (checked()) join_blocks(cluster);
  cluster.arrived = 0;
  cluster.phase++;
  grid.progress++;
  for (Block* member : cluster.blocks)
    for (int w = 0; w < member->warp_count; w++) {
      make_ready(member->warps[w], member->cluster_waiting[w]);
      member->cluster_waiting[w] = 0;
    }
}

void release_if_complete(Cluster& cluster) {
  if (cluster.arrived && cluster.arrived == alive_threads(cluster)) release(cluster);
}

void arrive(Thread& thread, Site site) {
  if (thread.cluster_arrivals != thread.cluster_waits) {
    report("cluster", site, "cluster_arrive twice, without cluster_wait between");
    stop();
  }
  thread.cluster_arrivals++;
  thread.block->cluster->arrived++;
  if (!checked()) return;
  thread.block->cluster_arriving.add(thread.clock, thread.linear);
  thread.clock.now++;
}

void arrive_together(Rendezvous& meeting) {
  for (uint32_t rest = meeting.arrived; rest; rest &= rest - 1)
    arrive(meeting.warp->lanes[__builtin_ctz(rest)], meeting.site);
  release_if_complete(*block->cluster);
}

bool knows_any(Block const& done, Reach const& reach) {
  return std::any_of(done.threads.begin(), done.threads.begin() + done.thread_count, [&](Thread const& thread) {
    return knows_foreign(thread.clock, reach.block, reach.stamp, Access::read);
  });
}

// The last access by each thread, or for each barrier, covers the earlier ones.
void note_reach(Block& owner, Reach const& reach) {
  for (Reach& known : owner.reached)
    if (known.block == reach.block && known.stamp.thread == reach.stamp.thread) {
      known = reach;
      return;
    }
  owner.reached.push_back(reach);
}

}  // namespace

int cluster_rank() { return int(rank_of(*block)); }
int cluster_size() { return int(block->cluster->blocks.size()); }

uint32_t rank_of(Block const& member) { return member.linear % uint32_t(member.cluster->blocks.size()); }

bool may_go_on(Cluster const& cluster) {
  return std::any_of(cluster.blocks.begin(), cluster.blocks.end(), [](Block const* member) {
    return member->alive && (member->ready_warps || member->paused || !member->transfers.empty() ||
                             has_products(*member) || spins(*member));
  });
}

void cluster_arrive(Site site) { meet(Operation::cluster_arrive, kAllLanes, nullptr, site, arrive_together); }

void cluster_wait(Site site) {
  meet(Operation::cluster_wait, kAllLanes, nullptr, site, [](Rendezvous&) {});
  Thread* thread = self();
  if (thread->cluster_arrivals == thread->cluster_waits) {
    report("cluster", site, "cluster_wait without cluster_arrive");
    stop();
  }
  while (block->cluster->phase < thread->cluster_arrivals) {
    block->cluster_waiting[thread->warp] |= 1u << thread->lane;
    wait_for("cluster_wait", site);
  }
  thread->cluster_waits++;
  if (checked()) learn(thread->clock, block->cluster_known);
}

void on_exit_before_cluster_barrier() {
  Thread const* thread = self();
  Cluster& cluster = *block->cluster;
  if (thread->cluster_arrivals > cluster.phase) cluster.arrived--;
  if (thread->cluster_arrivals != thread->cluster_waits)
    report("cluster", Site(), "a thread exits between cluster_arrive and cluster_wait");
  release_if_complete(cluster);
}

uint32_t map_shared_rank(uint32_t address, int rank, Site site) {
  if (rank < 0 || rank >= cluster_size()) {
    report("cluster", site, "map_shared_rank to block %d of a cluster of %d", rank, cluster_size());
    stop();
  }
  shared_pointer(address, 0, 1, "map_shared_rank", site);
  return address + (uint32_t(rank + 1) << kRankShift);
}

Mapped resolve(uint32_t mapped, char const* what, Site site) {
  uint32_t const rank = (mapped >> kRankShift) - 1;
  if (rank >= block->cluster->blocks.size()) {
    report("cluster", site, "%s on address %#x, which is none of map_shared_rank", what, mapped);
    stop();
  }
  return {block->cluster->blocks[rank], mapped & ((1u << kRankShift) - 1)};
}

bool check_present(Block const& owner, char const* what, Site site) {
  if (owner.alive) return true;
  report("cluster_exit", site, "%s in block %u of the cluster, which has exited", what, rank_of(owner));
  return false;
}

void note_arrival(Block& owner, Site site) {
  note_reach(owner, {block->linear, {current->linear, self()->clock.now}, "arrival", site});
}

void note_copy_out(Block const& to, Stamp copy, Site site) {
  note_reach(*block, {to.linear, copy, "copy out of it", site});
}

void check_reached(Block const& done) {
  for (Reach const& reach : done.reached)
    if (!knows_any(done, reach))
      report("cluster_exit", reach.site, "block %u of the cluster exits, and nothing orders that behind this %s",
             rank_of(done), reach.what);
}

}  // namespace emulator
