// Clusters: co-resident blocks with a barrier and access to each other's shared memory.
#pragma once
#include "state.h"

namespace emulator {

struct Cluster {
  std::vector<Block*> blocks;  // by rank; exited blocks stay until all have exited
  int running;  // number of running blocks
  int arrived;  // threads that arrived in the current phase of the barrier
  uint32_t phase;  // number of completed phases
};

// A remote operation on this block's shared memory, before which the block must not exit: an arrival on one of its
// barriers, or a copy out of its shared memory.
struct Reach {
  uint32_t block;
  Stamp stamp;
  char const* what;
  Site site;
};

uint32_t rank_of(Block const& member);
// Whether another block of the cluster can still make progress.
bool may_go_on(Cluster const& cluster);

// The block and shared address for a result of map_shared_rank; any other address ends the launch.
struct Mapped {
  Block* owner;
  uint32_t address;
};
Mapped resolve(uint32_t mapped, char const* what, Site site);
// Whether `owner` is still running; reports a finding otherwise.
bool check_present(Block const& owner, char const* what, Site site);
void note_arrival(Block& owner, Site site);  // by the running thread
void note_copy_out(Block const& to, Stamp copy, Site site);  // out of the running block's shared memory

// The running thread exits, so the barrier no longer waits for it.
void on_exit_before_cluster_barrier();
// All threads of the block have exited; reports remote accesses that are not ordered before that.
void check_reached(Block const& done);

}  // namespace emulator
