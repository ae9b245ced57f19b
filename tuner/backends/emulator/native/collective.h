// Operations that the lanes of a warp execute together.
#pragma once
#include "state.h"

namespace emulator {

char const* name_of(Operation operation);

// The running lane comes to `operation` with the lanes of `mask`, which must all come from `site`. The last one calls
// `run` for all, then they go on.
void meet(Operation operation, uint32_t mask, void* arguments, Site site, void (*run)(Rendezvous&));

template <class T>
T& argument(Rendezvous& meeting, int lane) {
  return *static_cast<T*>(meeting.arguments[lane]);
}

// Lanes that have exited are not waited for.
void on_exit_of_lane(Warp& warp);

// All threads of the block have exited: whole warpgroups have moved registers, or none of their warps.
void check_claims(Block const& done);

// Orders what the lanes did before ahead of what they do next.
void join_lanes(Warp& warp, uint32_t lanes);

}  // namespace emulator
