// Asynchronous matrix products of a warpgroup.
#pragma once
#include "state.h"

namespace emulator {

// A warp's 16 rows of one wgmma in flight.
struct WgmmaProduct {
  WgmmaOperands lanes[kWarpSize];
  uint32_t a[kWarpSize][4];   // A in registers, as issued
  std::vector<float> before;  // the accumulators, by lane, while they are poisoned; empty: another product keeps them
  bool done;
  Site site;
};

// Lane 0's accumulators as a wgmma left them.
struct Delivered {
  float const* d;
  uint64_t digest;
};

// What a warp has in flight, and what it issued, by which the warps of a warpgroup are compared.
struct WgmmaQueue {
  std::vector<WgmmaProduct> open;
  std::vector<std::vector<WgmmaProduct>> groups;
  bool fenced;  // since the last wait
  std::vector<Delivered> delivered;
  uint64_t issued, digest;
  Site last;
};

void start_wgmma(Block& starting);
void check_outstanding_wgmma();            // the running thread is about to exit
void check_warpgroups(Block const& done);  // its four warps issued the same

}  // namespace emulator
