// Operations that the lanes of a warp execute together.
#pragma once
#include "state.h"

namespace emulator {

char const* name_of(Operation operation);

// The running lane executes `operation` with the lanes of `mask`, which must all arrive from `site`. The last lane to
// arrive calls `run` for all of them.
void meet(Operation operation, uint32_t mask, void* arguments, Site site, void (*run)(Rendezvous&));

template <class T>
T& argument(Rendezvous& meeting, int lane) {
  return *static_cast<T*>(meeting.arguments[lane]);
}

// Lanes that have exited are no longer waited for.
void on_exit_of_lane(Warp& warp);

// All threads of the block have exited: checks that setmaxnreg was executed by whole warpgroups.
void check_claims(Block const& done);

// Orders the prior accesses of all lanes before their later ones.
void join_lanes(Warp& warp, uint32_t lanes);

}  // namespace emulator
