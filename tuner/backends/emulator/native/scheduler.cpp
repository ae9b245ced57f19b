// Thread scheduling: the lanes of one warp run as long as they can, then another warp; in order, reversed, or at
// random.
#include "scheduler.h"

#include <algorithm>
#include <string>

#include "bulk.h"
#include "cluster.h"
#include "collective.h"
#include "fiber.h"
#include "report.h"
#include "tcgen05.h"

namespace emulator {

Block* block;

namespace {

uint32_t lowest(uint32_t mask) { return uint32_t(__builtin_ctz(mask)); }
uint32_t highest(uint32_t mask) { return 31u - uint32_t(__builtin_clz(mask)); }

uint32_t any_of(uint32_t mask) {
  for (uint32_t skip = random_below(uint32_t(__builtin_popcount(mask))); skip; skip--) mask &= mask - 1;
  return lowest(mask);
}

uint32_t next_warp() {
  uint32_t const ready = block->ready_warps, last = uint32_t(block->last_warp);
  switch (grid.options.schedule) {
    case Schedule::order: {
      uint32_t const later = ready & ~((2u << last) - 1);
      return ready >> last & 1 ? last : lowest(later ? later : ready);
    }
    case Schedule::reverse: return highest(ready);
    case Schedule::random: break;
  }
  // Of 256: probabilities that a warp keeps running, which the seed selects.
  constexpr uint32_t kStay[] = {0, 200, 250, 256};
  bool const stay = ready >> last & 1 && random_below(256) < kStay[grid.options.seed & 3];
  return stay ? last : any_of(ready);
}

uint32_t next_lane(uint32_t ready) {
  switch (grid.options.schedule) {
    case Schedule::order: return lowest(ready);
    case Schedule::reverse: return highest(ready);
    case Schedule::random: break;
  }
  return any_of(ready);
}

// Blocks of a cluster also switch occasionally while they could continue.
bool gives_way() {
  block->paused = random_below(8) == 0;
  return block->paused;
}

Thread* next_thread() {
  if (!block->transfers.empty()) {
    if (grid.options.timing == Timing::random && random_below(8) == 0) finish_any_transfer();
    while (!block->ready_warps && !block->transfers.empty()) finish_any_transfer();
  }
  if (has_products(*block)) {
    if (grid.options.timing == Timing::random && random_below(8) == 0) finish_any_product();
    while (!block->ready_warps && has_products(*block)) finish_any_product();
  }
  if (!block->ready_warps || (grid.mixes_clusters && gives_way())) return nullptr;
  uint32_t const w = next_warp();
  Warp& warp = block->warps[w];
  uint32_t const lane = next_lane(warp.ready);
  warp.ready &= ~(1u << lane);
  if (!warp.ready) block->ready_warps &= ~(1u << w);
  block->last_warp = int(w);
  return warp.lanes + lane;
}

void run_next() {
  if (Thread* next = next_thread())
    switch_to(next);
  else
    leave_fiber_resumably();
}

bool same_wait(Thread const& a, Thread const& b) {
  return a.exited == b.exited && a.waiting_at.bits == b.waiting_at.bits && a.waiting_id == b.waiting_id &&
         a.waiting_for == b.waiting_for;
}

// The number of threads waiting at each site.
std::string waits_of(Block const& waiting) {
  std::vector<bool> told(waiting.threads.size());
  std::string text;
  for (int i = 0; i < waiting.thread_count; i++) {
    Thread const& thread = waiting.threads[i];
    if (told[i]) continue;
    int count = 0;
    for (int j = i; j < waiting.thread_count; j++)
      if (same_wait(thread, waiting.threads[j])) told[j] = true, count++;
    text += "; " + std::to_string(count);
    text += thread.exited ? " exited" : std::string(" at ") + thread.waiting_for;
    if (!thread.exited) text += " (line " + std::to_string(thread.waiting_at.line()) + ")";
  }
  return text;
}

}  // namespace

void make_ready(Warp& warp, uint32_t lanes) {
  if (!lanes) return;
  warp.ready |= lanes;
  warp.block->ready_warps |= 1u << warp.index;
}

void wait_for(char const* what, Site site, uint32_t id) {
  Thread* thread = self();
  thread->waiting_for = what;
  thread->waiting_at = site;
  thread->waiting_id = id;
  run_next();
}

void spin(char const* what, Site site) {
  warp_of(self()).spinning |= 1u << current->lane;
  wait_for(what, site);
}

void maybe_pause_block() {
  if (grid.options.schedule != Schedule::random || grid.blocks == 1 || random_below(2)) return;
  Thread* thread = self();
  make_ready(warp_of(thread), 1u << thread->lane);
  block->paused = true;
  leave_fiber_resumably();
}

void exit_thread() {
  Thread* thread = self();
  thread->exited = true;
  thread->waiting_for = "exit";
  thread->waiting_at = Site();
  warp_of(thread).alive &= ~(1u << thread->lane);
  block->alive--;
  on_exit_of_lane(warp_of(thread));
  on_exit_before_cluster_barrier();
  if (block->alive == 0) leave_fiber();
  on_exit_before_barrier();
  run_next();
  __builtin_unreachable();
}

void run(Block* resumed) {
  block = resumed;
  block_index = resumed->index;
  Thread* first = next_thread();
  if (first) enter_fiber(first);
}

bool spins(Block const& waiting) {
  for (int w = 0; w < waiting.warp_count; w++)
    if (waiting.warps[w].spinning) return true;
  return false;
}

void wake_spinning(Block& waiting) {
  for (int w = 0; w < waiting.warp_count; w++) {
    Warp& warp = waiting.warps[w];
    make_ready(warp, warp.spinning);
    warp.spinning = 0;
  }
}

void report_deadlock(char const* kind, char const* message) {
  std::string text = message;
  for (Block const* member : block->cluster->blocks) {
    if (grid.cluster > 1) text += "; block " + std::to_string(rank_of(*member)) + " of the cluster";
    text += waits_of(*member);
  }
  Site first;
  for (int i = block->thread_count; i-- > 0;)
    if (!block->threads[i].exited) first = block->threads[i].waiting_at;
  report(kind, first, "%s", text.c_str());
}

}  // namespace emulator
