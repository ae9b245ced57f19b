// Warp collectives: convergence of lanes, __syncwarp, shuffles, votes and reductions.
#include "collective.h"

#include <algorithm>

#include "report.h"
#include "scheduler.h"

namespace emulator {

namespace {

void refuse(Operation operation, uint32_t mask, Site site, Rendezvous const& other) {
  Finding* finding =
      report("warp_divergence", site, "%s (lanes %08x) while lanes %08x of the warp wait at %s (line %d)",
             name_of(operation), mask, other.arrived, name_of(other.operation), other.site.line());
  if (finding) finding->other_site = other.site;
  stop();
}

Rendezvous* find_meeting(Warp& warp, Operation operation, uint32_t mask, Site site) {
  Rendezvous* vacant = nullptr;
  for (Rendezvous& meeting : warp.rendezvous) {
    if (meeting.operation == Operation::none) {
      if (!vacant) vacant = &meeting;
    } else if (meeting.mask == mask && meeting.operation == operation && meeting.site.bits == site.bits) {
      return &meeting;
    } else if (meeting.mask >> current->lane & 1 && meeting.arrived & mask) {  // both wait for each other
      refuse(operation, mask, site, meeting);
    }
  }
  if (!vacant) {
    report("unsupported", site, "more than 8 groups of lanes of one warp meet at once");
    stop();
  }
  vacant->operation = operation;
  vacant->mask = mask;
  vacant->site = site;
  vacant->arrived = 0;
  vacant->warp = &warp;
  return vacant;
}

// An operation for which every lane supplies or receives data; the others complete with the remaining lanes.
bool needs_all_lanes(Operation operation) { return operation >= Operation::setmaxnreg; }

void require_all_lanes(Rendezvous const& meeting) {
  if (!needs_all_lanes(meeting.operation) || meeting.arrived == meeting.mask) return;
  report("warp_divergence", meeting.site, "%s, but lanes %08x of the warp have exited", name_of(meeting.operation),
         meeting.mask & ~meeting.arrived);
  stop();
}

}  // namespace

char const* name_of(Operation operation) {
  static constexpr char const* kNames[] = {
      "",         "__syncwarp", "shuffle", "vote or reduction", "cluster_arrive", "cluster_wait", "setmaxnreg",
      "ldmatrix", "stmatrix", "mma", "wgmma", "wgmma_commit", "wgmma_wait", "elect_one", "tcgen05_alloc", "tcgen05_dealloc",
      "tcgen05_relinquish_alloc_permit", "tcgen05_ld", "tcgen05_st", "tcgen05_wait_ld", "tcgen05_wait_st"};
  return kNames[int(operation)];
}

void meet(Operation operation, uint32_t mask, void* arguments, Site site, void (*run)(Rendezvous&)) {
  Warp& warp = warp_of(self());
  uint32_t const own = 1u << current->lane;
  if (!(mask & own)) {
    report("warp_mask", site, "%s: the calling lane %u is not in the mask %08x", name_of(operation), current->lane,
           mask);
    stop();
  }
  Rendezvous& meeting = *find_meeting(warp, operation, mask, site);
  meeting.arguments[current->lane] = arguments;
  meeting.arrived |= own;
  if (meeting.arrived != (mask & warp.alive)) {
    wait_for(name_of(operation), site);
    return;
  }
  require_all_lanes(meeting);
  count_bank_conflicts(warp);
  run(meeting);
  meeting.operation = Operation::none;
  bool const yields = grid.options.schedule == Schedule::random && random_below(2);
  make_ready(warp, yields ? meeting.arrived : meeting.arrived & ~own);
  if (yields) wait_for(name_of(operation), site);
}

void on_exit_of_lane(Warp& warp) {
  if (!warp.alive) count_bank_conflicts(warp);
  for (Rendezvous& meeting : warp.rendezvous) {
    if (meeting.operation == Operation::none || meeting.arrived != (meeting.mask & warp.alive)) continue;
    report("warp_divergence", meeting.site, "a lane exited while lanes %08x of its warp wait for it at %s",
           meeting.arrived, name_of(meeting.operation));
    stop();
  }
}

// ---- elect

// Always elects the same lane; kernels must not rely on which.
bool elect_one(Site site) {
  meet(Operation::elect, kAllLanes, nullptr, site, [](Rendezvous&) {});
  switch (grid.options.schedule) {
    case Schedule::order: return current->lane == 0;
    case Schedule::reverse: return current->lane == kWarpSize - 1;
    case Schedule::random: break;
  }
  return current->lane == grid.options.seed % kWarpSize;
}

// ---- __syncwarp

void join_lanes(Warp& warp, uint32_t lanes) {
  if (!checked()) return;
  Gather gather;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Thread& lane = warp.lanes[__builtin_ctz(rest)];
    gather.add(lane.clock, lane.linear);
  }
  RowRef const joined = gather.take();
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Clock& clock = warp.lanes[__builtin_ctz(rest)].clock;
    clock.row = joined;
    clock.now++;
  }
}

void syncwarp(uint32_t mask, Site site) {
  meet(Operation::syncwarp, mask, nullptr, site, [](Rendezvous& meeting) {
    counters.syncwarps++;
    join_lanes(*meeting.warp, meeting.arrived);
  });
}

uint32_t active_mask() { return 1u << current->lane; }  // the minimum that hardware may return

void setmaxnreg(int registers, Site site) {
  counters.claimed_registers += uint64_t(registers);
  meet(Operation::setmaxnreg, kAllLanes, nullptr, site,
       [](Rendezvous& meeting) { meeting.warp->claims.push_back(meeting.site); });
}

// The instruction involves the whole warpgroup: a warp that skips it deadlocks the others.
void check_claims(Block const& done) {
  for (int w = 0; w < done.warp_count; w++) {
    std::vector<Site> const &own = done.warps[w].claims, &first = done.warps[w / 4 * 4].claims;
    bool const same = std::equal(own.begin(), own.end(), first.begin(), first.end(),
                                 [](Site a, Site b) { return a.bits == b.bits; });
    bool const whole = own.empty() || w / 4 * 4 + 4 <= done.warp_count;
    if (same && whole) continue;
    report("warp_divergence", own.empty() ? first.back() : own.back(),
           "setmaxnreg by %s: warp %d of its warpgroup", same ? "less than a warpgroup" : "some warps only", w % 4);
  }
}

// ---- shuffles

namespace {

struct ShuffleArguments {
  uint64_t value, result;
  int source, width;
  Shuffle mode;
};

int source_lane(ShuffleArguments const& call, int lane) {
  int const begin = lane & ~(call.width - 1), end = begin + call.width;
  switch (call.mode) {
    case Shuffle::index: return begin + (call.source & (call.width - 1));
    case Shuffle::up: return lane - call.source < begin ? lane : lane - call.source;
    case Shuffle::down: return lane + call.source >= end ? lane : lane + call.source;
    case Shuffle::exclusive_or: break;
  }
  int const other = lane ^ call.source;
  return other >= end ? lane : other;
}

void run_shuffle(Rendezvous& meeting) {
  counters.shuffles++;
  for (uint32_t rest = meeting.arrived; rest; rest &= rest - 1) {
    int const lane = __builtin_ctz(rest);
    auto& call = argument<ShuffleArguments>(meeting, lane);
    int const source = source_lane(call, lane);
    if (meeting.arrived >> source & 1) {
      call.result = argument<ShuffleArguments>(meeting, source).value;
      continue;
    }
    report("warp_mask", meeting.site, "lane %d shuffles from lane %d, which takes no part (mask %08x)", lane, source,
           meeting.arrived);
    call.result = ~uint64_t(0);
  }
}

}  // namespace

uint64_t shuffle(uint32_t mask, uint64_t value, int source, int width, Shuffle mode, Site site) {
  ShuffleArguments call{value, 0, source, width, mode};
  meet(Operation::shuffle, mask, &call, site, run_shuffle);
  return call.result;
}

// ---- votes and reductions

namespace {

struct ReduceArguments {
  uint32_t value, result;
  Reduction reduction;
};

uint32_t combine(Reduction reduction, uint32_t a, uint32_t b) {
  switch (reduction) {
    case Reduction::ballot:
    case Reduction::bit_or: return a | b;
    case Reduction::add: return a + b;
    case Reduction::minimum: return std::min(a, b);
    case Reduction::maximum: return std::max(a, b);
    case Reduction::signed_minimum: return uint32_t(std::min(int32_t(a), int32_t(b)));
    case Reduction::signed_maximum: return uint32_t(std::max(int32_t(a), int32_t(b)));
    case Reduction::bit_and: return a & b;
    case Reduction::bit_xor: break;
  }
  return a ^ b;
}

void run_reduce(Rendezvous& meeting) {
  counters.shuffles++;
  uint32_t result = 0;
  bool first = true;
  for (uint32_t rest = meeting.arrived; rest; rest &= rest - 1) {
    int const lane = __builtin_ctz(rest);
    auto const& call = argument<ReduceArguments>(meeting, lane);
    uint32_t const value = call.reduction == Reduction::ballot ? call.value << lane : call.value;
    result = first ? value : combine(call.reduction, result, value);
    first = false;
  }
  for (uint32_t rest = meeting.arrived; rest; rest &= rest - 1)
    argument<ReduceArguments>(meeting, __builtin_ctz(rest)).result = result;
}

}  // namespace

uint32_t reduce(uint32_t mask, uint32_t value, Reduction reduction, Site site) {
  ReduceArguments call{value, 0, reduction};
  meet(Operation::reduce, mask, &call, site, run_reduce);
  return call.result;
}

}  // namespace emulator
