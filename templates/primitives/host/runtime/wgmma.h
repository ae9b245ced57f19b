// Asynchronous matrix products of a warpgroup.
#pragma once
#include "state.h"

namespace emulator {

struct Warpgroup {
  int unused;
};
void start_warpgroups(Block& starting);

}  // namespace emulator
