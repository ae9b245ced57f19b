// mbarrier: phases, waiting threads, and the accesses that a completed phase orders.
#include "mbarrier.h"

#include <algorithm>

#include "bulk.h"
#include "cluster.h"
#include "memory.h"
#include "report.h"
#include "scheduler.h"
#include "shadow.h"

namespace emulator {

namespace {

constexpr uint32_t kBytes = 8;
constexpr int kMaxArrivals = (1 << 20) - 1;
constexpr int kMaxBytes = (1 << 20) - 1;  // maximum of pending bytes

Mbarrier* find(Block& owner, uint32_t address) {
  for (Mbarrier& barrier : owner.mbarriers)
    if (barrier.address == address) return &barrier;
  return nullptr;
}

// A barrier of another block is not initialised before a cluster barrier, regardless of the order in which blocks run.
void check_remote(Block const& owner, Mbarrier const& barrier, char const* what, Site site) {
  if (!checked() || ordered_before(owner.linear, barrier.initialized, Access::write)) return;
  set_place(
      report("mbarrier", site, "%s on another block's mbarrier, and nothing orders its mbarrier_init before", what),
      "shared", barrier.address - kSharedBase);
}

// The barrier that the running thread uses; the use counts as a read of shared memory. A barrier must be ended with
// mbarrier_inval before its memory is reused.
void check_intact(Block& owner, Mbarrier const& barrier, char const* what, Site site) {
  if (!checked() || is_last_write(owner, barrier.address, barrier.initialized)) return;
  set_place(report("mbarrier", site, "%s on an mbarrier that others wrote over", what), "shared",
            barrier.address - kSharedBase);
  stop();
}

void expect(Mbarrier& barrier, int bytes, Site site) {
  barrier.bytes += bytes;
  if (bytes >= 0 && barrier.bytes <= kMaxBytes) return;
  report("mbarrier", site, "an mbarrier expects %lld bytes: 0 to %d are possible",
         static_cast<long long>(bytes < 0 ? bytes : barrier.bytes), kMaxBytes);
  stop();
}

Mbarrier& used(Block& owner, uint32_t address, char const* what, Site site) {
  shared_pointer(address, kBytes, kBytes, what, site);
  if (Mbarrier* barrier = find(owner, address)) {
    check_intact(owner, *barrier, what, site);
    if (&owner == block)
      check_shared(address, kBytes, false, site);
    else
      check_remote(owner, *barrier, what, site);
    return *barrier;
  }
  set_place(report("mbarrier", site, "%s on what is no mbarrier (yet, or any more)", what), "shared",
            address - kSharedBase);
  stop();
}

Mbarrier& used(uint32_t address, char const* what, Site site) { return used(*block, address, what, site); }

void end_phase(Block& owner, Mbarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.arrivals;
  if (checked()) barrier.completed = barrier.arriving.take();
  for (int w = 0; w < owner.warp_count; w++) {
    make_ready(owner.warps[w], barrier.waiting[w]);
    barrier.waiting[w] = 0;
  }
}

void learn_phase(Mbarrier const& barrier) {
  if (checked() && barrier.completed) learn(self()->clock, barrier.completed);
}

void check_expected(Mbarrier const& barrier, Site site) {
  if (barrier.pending) return;
  report("mbarrier", site, "more than the %d arrivals that this phase of the barrier expects", barrier.arrivals);
  stop();
}

void arrive(Block& owner, Mbarrier& barrier, Site site) {
  check_expected(barrier, site);
  if (checked() && &owner == block) {
    barrier.arriving.add(self()->clock, current->linear);
    self()->clock.now++;
  } else if (checked()) {
    note_arrival(owner, site);
    barrier.arriving.add_reads({block->linear, publish(self()->clock, current->linear)});
  }
  barrier.pending--;
  end_phase(owner, barrier);
}

void check_fenced(Mbarrier const& barrier, Site site) {
  if (barrier.fenced) return;
  set_place(report("proxy_fence", site,
                   "the copy engine or a tensor core uses an mbarrier that no fence_mbarrier_init made visible to it"),
            "shared", barrier.address - kSharedBase);
}

bool knows_copies(Thread const& thread, Mbarrier const& barrier) {
  return thread.clock.row->known[agent_column(barrier.agent)] >= barrier.agent_clock;
}

}  // namespace

void mbarrier_init(uint32_t address, int arrivals, Site site) {
  shared_pointer(address, kBytes, kBytes, "mbarrier_init", site);
  if (arrivals < 1 || arrivals > kMaxArrivals) {
    report("mbarrier", site, "mbarrier_init for %d arrivals: 1 to %d are possible", arrivals, kMaxArrivals);
    stop();
  }
  check_shared(address, kBytes, true, site);
  Mbarrier* barrier = find(*block, address);
  if (barrier) report("mbarrier", site, "mbarrier_init of what is an mbarrier: mbarrier_inval comes before");
  if (!barrier) {
    block->mbarriers.emplace_back();
    barrier = &block->mbarriers.back();
    barrier->agent = int(block->mbarriers.size()) - 1;
  }
  barrier->address = address;
  barrier->initialized = {current->linear, checked() ? self()->clock.now : 1};
  barrier->fenced = false;
  barrier->arrivals = barrier->pending = arrivals;
  barrier->bytes = 0;
  barrier->phase = 0;
}

void mbarrier_inval(uint32_t address, Site site) {
  used(address, "mbarrier_inval", site).address = 0;
  check_shared(address, kBytes, true, site);
}

void mbarrier_arrive(uint32_t address, Site site) { arrive(*block, used(address, "mbarrier_arrive", site), site); }

void mbarrier_arrive_cluster(uint32_t mapped, int expected_bytes, Site site) {
  auto const [owner, address] = resolve(mapped, "mbarrier_arrive_cluster", site);
  if (!check_present(*owner, "mbarrier_arrive_cluster", site)) return;
  Mbarrier& barrier = used(*owner, address, "mbarrier_arrive_cluster", site);
  expect(barrier, expected_bytes, site);
  arrive(*owner, barrier, site);
  grid.progress++;
}

void mbarrier_expect_tx(uint32_t address, int bytes, Site site) {
  expect(used(address, "mbarrier_expect_tx", site), bytes, site);
}

bool mbarrier_test_wait(uint32_t address, int parity, Site site) {
  Mbarrier& barrier = used(address, "mbarrier_test_wait", site);
  if (barrier.phase == (parity & 1)) {
    spin("mbarrier_test_wait", site);
    return false;
  }
  learn_phase(barrier);
  return true;
}

void mbarrier_wait(uint32_t address, int parity, Site site) {
  Mbarrier* barrier = &used(address, "mbarrier_wait", site);
  while (barrier->phase == (parity & 1)) {
    barrier->waiting[current->warp] |= 1u << current->lane;
    wait_for("mbarrier_wait", site, address - kSharedBase);
    barrier = &used(address, "mbarrier_wait", site);
  }
  learn_phase(*barrier);
}

void fence_mbarrier_init() {
  for (Mbarrier& barrier : block->mbarriers)
    if (barrier.initialized.thread == current->linear) barrier.fenced = true;
}

void fence_proxy_async() {
  fence_mbarrier_init();
  if (checked()) proxy_fence(self()->clock, current->linear);
}

Stamp begin_transfer(Block& owner, uint32_t address, Site site) {
  Mbarrier& barrier = used(owner, address, "a copy", site);
  barrier.last_copy = site;
  check_fenced(barrier, site);
  return {uint32_t(agent_column(barrier.agent)), ++barrier.agent_clock};
}

void land_transfer(Block& owner, uint32_t address, uint32_t bytes, uint32_t clock, Site site) {
  Mbarrier* barrier = find(owner, address);
  if (!barrier) {
    set_place(report("mbarrier", site, "a copy lands after its mbarrier is gone"), "shared", address - kSharedBase);
    return;
  }
  if (checked()) barrier->arriving.add_agent(agent_column(barrier->agent), clock);
  barrier->bytes -= bytes;
  end_phase(owner, *barrier);
}

void begin_commit(uint32_t address, Site site) { check_fenced(used(address, "tcgen05_commit", site), site); }

void land_commit(Block& owner, uint32_t address, RowRef const& known, Stamp products, Site site) {
  Mbarrier* barrier = find(owner, address);
  if (!barrier) {
    set_place(report("mbarrier", site, "tcgen05_commit arrives after its mbarrier is gone"), "shared",
              address - kSharedBase);
    return;
  }
  check_expected(*barrier, site);
  if (checked()) {
    barrier->arriving.add(known);
    barrier->arriving.add_agent(int(products.thread), products.clock);
  }
  barrier->pending--;
  end_phase(owner, *barrier);
}

void check_transfers(Block const& done) {
  constexpr char const* kWhat = "a block exits before this copy into its shared memory has been waited for";
  for (Transfer const& transfer : done.transfers) report("outstanding", transfer.site, "%s", kWhat);
  if (!checked()) return;
  auto const threads = done.threads.begin();
  for (Mbarrier const& barrier : done.mbarriers)
    if (std::none_of(threads, threads + done.thread_count,
                     [&](Thread const& each) { return knows_copies(each, barrier); }))
      report("outstanding", barrier.last_copy, "%s", kWhat);
}

}  // namespace emulator
