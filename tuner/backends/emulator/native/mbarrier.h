// Barriers in shared memory that count arrivals and transaction bytes.
#pragma once
#include "state.h"

namespace emulator {

struct Mbarrier {
  uint32_t address;
  int agent;  // clock column of the copies that it counts
  uint32_t agent_clock;  // number of copies issued
  Site last_copy;
  Stamp initialized;
  bool fenced;  // bulk copies may use the barrier
  int arrivals, pending;
  int64_t bytes;  // expected bytes that have not landed
  int phase;
  uint32_t waiting[kMaxWarps];
  Gather arriving;
  RowRef completed;  // join over the threads that arrived in the last phase; may be null
};

// Checks that bulk copies may use the barrier of `owner`, and returns the stamp of a new copy.
Stamp begin_transfer(Block& owner, uint32_t barrier, Site site);
void land_transfer(Block& owner, uint32_t barrier, uint32_t bytes, uint32_t clock, Site site);
// The same for tcgen05_commit, whose arrival publishes the products and everything ordered before their issue.
void begin_commit(uint32_t barrier, Site site);
void land_commit(Block& owner, uint32_t barrier, RowRef const& known, Stamp products, Site site);
// All threads of the block have exited: reports copies that are still in flight to it.
void check_transfers(Block const& done);

}  // namespace emulator
