// Asynchronous matrix products of a warpgroup.
#pragma once
#include "state.h"

namespace emulator {

// A warp's 16 rows of a wgmma in flight.
struct WgmmaProduct {
  WgmmaOperands lanes[kWarpSize];
  uint32_t a[kWarpSize][4];   // A in registers, as issued
  // The accumulators by lane while they are poisoned; empty if an earlier product holds them.
  std::vector<float> before;
  bool done;
  Site site;
};

// Lane 0's accumulators after a wgmma.
struct Delivered {
  float const* d;
  uint64_t digest;
};

// A warp's products in flight, and a record of its issued products for comparison within the warpgroup.
struct WgmmaQueue {
  std::vector<WgmmaProduct> open;
  std::vector<std::vector<WgmmaProduct>> groups;
  bool fenced;  // since the last wait
  std::vector<Delivered> delivered;
  uint64_t issued, digest;
  Site last;
};

void start_wgmma(Block& starting);
void check_outstanding_wgmma();  // called when the running thread is about to exit
void check_warpgroups(Block const& done);  // checks that the four warps of each warpgroup issued the same

}  // namespace emulator
