// Clusters: blocks that run side by side, meet in a barrier, and reach each other's shared memory.
#pragma once
#include "state.h"

namespace emulator {

struct Cluster {
  std::vector<Block*> blocks;  // by rank; those that have exited stay until all have
  int running;                 // blocks
  int arrived;                 // threads, in the present phase of the barrier
  uint32_t phase;              // how often all have met
};

// What another block does here, so that this one must not exit before: an arrival of its thread on a barrier, or a copy
// out of this one's shared memory that its barrier counts.
struct Reach {
  uint32_t block;
  Stamp stamp;
  char const* what;
  Site site;
};

uint32_t rank_of(Block const& member);
// Whether a block of the cluster could run on, so that others of it wait with reason.
bool may_go_on(Cluster const& cluster);

// The block and the own address that an address of map_shared_rank stands for; any other address ends the launch.
struct Mapped {
  Block* owner;
  uint32_t address;
};
Mapped resolve(uint32_t mapped, char const* what, Site site);
// Whether `owner` has not exited; a report otherwise.
bool check_present(Block const& owner, char const* what, Site site);
void note_arrival(Block& owner, Site site);                  // of the running thread
void note_copy_out(Block const& to, Stamp copy, Site site);  // of the running block's shared memory

// The running thread exits: the barrier waits for it no longer.
void on_exit_before_cluster_barrier();
// All threads of the block have exited: no other block may still access its shared memory.
void check_reached(Block const& done);

}  // namespace emulator
