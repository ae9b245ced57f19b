// Atomics and memory order: a release publishes the thread's clock at the address, and an acquire joins it.
#include <cstring>
#include <unordered_map>

#include "report.h"
#include "scheduler.h"
#include "shadow.h"

namespace emulator {

namespace {

std::unordered_map<uintptr_t, std::vector<Publication>> published;

bool acquires(Order order) { return order == Order::acquire || order == Order::acq_rel; }
bool releases(Order order) { return order == Order::release || order == Order::acq_rel; }

void learn_all(Clock& clock, std::vector<Publication> const& news) {
  for (Publication const& publication : news) {
    if (publication.block == block->linear)
      learn(clock, publication.row);
    else
      learn_foreign(clock, block->linear, publication);
  }
}

void read_order(void const* p, Order order) {
  self()->unfenced_acquire |= acquires(order);
  auto const found = published.find(reinterpret_cast<uintptr_t>(p));
  if (found == published.end()) return;
  Clock& clock = self()->clock;
  if (acquires(order))
    learn_all(clock, found->second);
  else
    clock.pending.insert(clock.pending.end(), found->second.begin(), found->second.end());
}

// A plain store ends the release sequence at the address; a read-modify-write continues it.
void write_order(void const* p, Order order, bool continues) {
  Clock& clock = self()->clock;
  RowRef const row = releases(order) ? publish(clock, current->linear) : clock.fence;
  auto& news = published[reinterpret_cast<uintptr_t>(p)];
  if (!continues || order == Order::acq_rel) news.clear();  // acq_rel: `row` holds the previous publication
  if (row) news.push_back({block->linear, row});
}

uint64_t read_bits(void const* p, int bytes) {
  uint64_t value = 0;
  std::memcpy(&value, p, size_t(bytes));
  return value;
}

// A thread that reads the same value from the same address again is assumed to spin.
bool polls(void const* p, uint64_t value) {
  Thread* thread = self();
  bool const again = thread->polled == p && thread->polled_value == value;
  thread->polled = p;
  thread->polled_value = value;
  return again;
}

}  // namespace

void forget_publications() { published.clear(); }

void modify_begin(void const* p, int bytes, Order order, Site site) {
  counters.atomics++;
  if (!checked()) return;
  check_atomic(p, uint32_t(bytes), false, site);
  check_atomic(p, uint32_t(bytes), true, site);
  read_order(p, order);
  write_order(p, order, true);
}

void modify_end(void const* p, bool changed, Order, Site site) {
  if (changed) {
    grid.progress++;
    self()->polled = nullptr;
    maybe_pause_block();
  } else if (polls(p, 0)) {
    spin("an atomic", site);
  }
}

uint64_t atomic_load(void const* p, int bytes, Order order, Site site) {
  if (polls(p, read_bits(p, bytes))) spin("an atomic load", site);
  uint64_t const value = self()->polled_value = read_bits(p, bytes);
  if (checked()) {
    check_atomic(p, uint32_t(bytes), false, site);
    read_order(p, order);
  }
  return value;
}

void atomic_store(void* p, uint64_t value, int bytes, Order order, Site site) {
  if (checked()) {
    check_atomic(p, uint32_t(bytes), true, site);
    write_order(p, order, false);
  }
  std::memcpy(p, &value, size_t(bytes));
  grid.progress++;
  maybe_pause_block();
}

void threadfence() {
  if (!checked()) return;
  Clock& clock = self()->clock;
  clock.fence = publish(clock, current->linear);
  learn_all(clock, clock.pending);
  clock.pending.clear();
}

void backoff(Site site) { spin("backoff", site); }

}  // namespace emulator
