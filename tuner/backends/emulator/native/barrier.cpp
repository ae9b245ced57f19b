// Barriers of the block: 0 is __syncthreads; 1 to 15 have an explicit thread count.
#include "barrier.h"

#include "report.h"
#include "scheduler.h"
#include "shadow.h"

namespace emulator {

namespace {

// A GPU counts a warp when its first lane arrives, and counts it again if other lanes arrive from elsewhere.
void check_whole_warps(Barrier& barrier) {
  for (int w = 0; w < block->warp_count; w++) {
    uint32_t const came = barrier.came[w], missing = block->warps[w].alive & ~came;
    barrier.came[w] = 0;
    if (came && missing)
      report("barrier_divergence", barrier.from[w], "a barrier is complete with lanes %08x of warp %d, and without %08x",
             came, w, missing);
  }
}

void release(Barrier& barrier) {
  check_whole_warps(barrier);
  RowRef const joined = checked() ? barrier.joined.take() : RowRef();
  bool const everyone = barrier.arrived == block->thread_count;
  for (int w = 0; w < block->warp_count; w++) {
    uint32_t const lanes = barrier.waiting[w];
    barrier.waiting[w] = 0;
    if (lanes) count_bank_conflicts(block->warps[w]);
    make_ready(block->warps[w], lanes);
    if (!checked()) continue;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      Clock& clock = block->warps[w].lanes[__builtin_ctz(rest)].clock;
      clock.row = joined;
      clock.now++;
    }
  }
  barrier.arrived = 0;
  counters.barriers++;
  // A barrier does not order operand reads of a product.
  if (checked() && everyone && !block->tensor) forget_shared_reads();
}

void check_agreement(Barrier const& barrier, int id, int threads, int expected, Site site) {
  if (threads % kWarpSize != 0 || id < 0 || id > 15) {
    report("barrier_count", site, "barrier %d for %d threads: ids are 0 to 15, threads a multiple of 32", id, threads);
    stop();
  }
  if (id == 0 && threads == 0 && block->alive < block->thread_count)
    report("barrier_exit", site, "__syncthreads after %d threads of the block have exited",
           block->thread_count - block->alive);
  if (!barrier.arrived) return;
  if (threads && barrier.expected != expected) {
    report("barrier_count", site, "barrier %d for %d threads, while others wait in it for %d (line %d)", id, expected,
           barrier.expected, barrier.site.line());
    stop();
  }
  if (id == 0 && barrier.site.bits != site.bits)
    if (Finding* finding = report("barrier_divergence", site, "__syncthreads while others of the block wait at line %d",
                                  barrier.site.line()))
      finding->other_site = barrier.site;
}

void note_lane(Barrier& barrier, int id, Site site) {
  uint32_t& came = barrier.came[current->warp];
  Site& from = barrier.from[current->warp];
  uint32_t const lane = 1u << current->lane;
  if (came & lane) {
    report("barrier_count", site, "barrier %d has the thread already, since line %d: others still have to come", id,
           from.line());
    stop();
  }
  if (came && id && from.bits != site.bits)
    if (Finding* finding = report("barrier_divergence", site, "barrier %d, to which others of the warp come at line %d",
                                  id, from.line()))
      finding->other_site = from;
  came |= lane;
  from = site;
}

// Whether the running thread completes the barrier.
bool arrive(Barrier& barrier, int id, int threads, Site site) {
  int const expected = threads ? threads : block->alive;
  check_agreement(barrier, id, threads, expected, site);
  note_lane(barrier, id, site);
  barrier.expected = expected;
  barrier.site = site;
  if (checked()) barrier.joined.add(self()->clock, current->linear);
  return ++barrier.arrived >= expected;
}

}  // namespace

void barrier_sync(int id, int threads, Site site) {
  Barrier& barrier = block->barriers[id & 15];
  bool const complete = arrive(barrier, id, threads, site);
  barrier.waiting[current->warp] |= 1u << current->lane;
  if (complete) release(barrier);
  wait_for(id ? "a named barrier" : "__syncthreads", site, uint32_t(id));
}

void barrier_arrive(int id, int threads, Site site) {
  Barrier& barrier = block->barriers[id & 15];
  bool const complete = arrive(barrier, id, threads, site);
  if (checked()) self()->clock.now++;
  if (complete) release(barrier);
}

void on_exit_before_barrier() {
  Barrier& barrier = block->barriers[0];
  if (!barrier.arrived || barrier.arrived < block->alive) return;
  report("barrier_exit", barrier.site, "a thread exited while %d threads wait in __syncthreads", barrier.arrived);
  release(barrier);
}

}  // namespace emulator
