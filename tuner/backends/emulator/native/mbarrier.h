// Barriers in shared memory that count arrivals and bytes.
#pragma once
#include "state.h"

namespace emulator {

struct Mbarrier {
  uint32_t address;
  int agent;             // column of the copies that count towards it
  uint32_t agent_clock;  // copies issued
  Site last_copy;
  Stamp initialized;
  bool fenced;  // the copy engine may use it
  int arrivals, pending;
  int64_t bytes;  // expected and not yet landed
  int phase;
  uint32_t waiting[kMaxWarps];
  Gather arriving;
  RowRef completed;  // the join over those that arrived in the last phase; may be null
};

// Checks that the copy engine may use the barrier of `owner`, and returns the stamp of one more copy.
Stamp begin_transfer(Block& owner, uint32_t barrier, Site site);
void land_transfer(Block& owner, uint32_t barrier, uint32_t bytes, uint32_t clock, Site site);
// The same for tcgen05_commit, which arrives when products are done: with them, and with what their issuer knew.
void begin_commit(uint32_t barrier, Site site);
void land_commit(Block& owner, uint32_t barrier, RowRef const& known, Stamp products, Site site);
// All threads of the block have exited: nothing may still be on its way into it.
void check_transfers(Block const& done);

}  // namespace emulator
