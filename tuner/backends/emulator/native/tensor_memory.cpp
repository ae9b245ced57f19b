// Allocation of tensor memory by warps.
#include "tensor_memory.h"

#include <algorithm>

#include "collective.h"
#include "report.h"
#include "shadow.h"

namespace emulator {

namespace {

constexpr int kUnit = 32;  // in columns
constexpr uint32_t kUntouched = ~0u;

// Finds `columns` free columns: the lowest, the highest or random ones, because no kernel may rely on the choice.
int find_room(TensorMemory const& memory, int columns) {
  std::vector<int> places;
  for (int first = 0; first + columns <= kTensorColumns; first += kUnit) {
    auto const overlaps = [=](Allocation const& a) { return first < a.first + a.columns && a.first < first + columns; };
    if (std::none_of(memory.allocations.begin(), memory.allocations.end(), overlaps)) places.push_back(first);
  }
  if (places.empty()) return -1;
  switch (grid.options.schedule) {
    case Schedule::order: return places.front();
    case Schedule::reverse: return places.back();
    case Schedule::random: break;
  }
  return places[random_below(uint32_t(places.size()))];
}

void forget(TensorMemory& memory, Allocation const& columns) {
  for (auto& lane : memory.cells) std::fill_n(lane + columns.first, columns.columns, kUntouched);
  for (auto& quarter : memory.shadow)
    for (int c = columns.first; c < columns.first + columns.columns; c++) quarter[c] = {};
}

struct AllocationArguments {
  uint32_t address;
  int columns;
};

AllocationArguments uniform_arguments(Rendezvous& meeting, char const* what) {
  auto const first = argument<AllocationArguments>(meeting, 0);
  for (int lane = 1; lane < kWarpSize; lane++) {
    auto const& other = argument<AllocationArguments>(meeting, lane);
    if (other.address == first.address && other.columns == first.columns) continue;
    report("tcgen05", meeting.site, "%s: the lanes of a warp give different arguments", what);
    stop();
  }
  return first;
}

void check_columns(TensorMemory const& memory, int columns, Site site) {
  if (columns < kUnit || columns > kTensorColumns || columns & (columns - 1))
    report("tcgen05", site, "tcgen05_alloc of %d columns: 32, 64, 128, 256 and 512 are possible", columns);
  else if (memory.relinquished)
    report("tcgen05", site, "tcgen05_alloc behind tcgen05_relinquish_alloc_permit");
  else if (memory.last_columns && columns > memory.last_columns)
    report("tcgen05", site, "tcgen05_alloc of %d columns after one of %d: a block's allocations may not grow", columns,
           memory.last_columns);
  else
    return;
  stop();
}

// The running block's tensor memory, created on first use.
TensorMemory& own_memory() {
  if (!block->tensor) {
    block->tensor = std::make_unique<TensorMemory>();
    block->tensor->fenced.assign(size_t(block->thread_count), checked() ? empty_row() : RowRef());
  }
  return *block->tensor;
}

void allocate(Rendezvous& meeting) {
  auto const [destination, columns] = uniform_arguments(meeting, "tcgen05_alloc");
  TensorMemory& memory = own_memory();
  check_columns(memory, columns, meeting.site);
  int const first = find_room(memory, columns);
  if (first < 0) {
    report("tcgen05", meeting.site, "tcgen05_alloc of %d columns would wait for columns that this block itself holds",
           columns);
    stop();
  }
  memory.last_columns = columns;
  memory.allocations.push_back({first, columns, meeting.site});
  forget(memory, memory.allocations.back());
  counters.tensor_columns += uint64_t(columns);
  auto const address = uint32_t(first);
  std::memcpy(shared_pointer(destination, 4, 4, "tcgen05_alloc", meeting.site), &address, sizeof address);
  check_shared(destination, 4, true, meeting.site);
  join_lanes(*meeting.warp, kAllLanes);  // every lane performs the write
}

void deallocate(Rendezvous& meeting) {
  auto const [address, columns] = uniform_arguments(meeting, "tcgen05_dealloc");
  TensorMemory& memory = tensor_memory(address, columns, "tcgen05_dealloc", meeting.site);
  auto const place = std::find_if(memory.allocations.begin(), memory.allocations.end(), [&](Allocation const& a) {
    return uint32_t(a.first) == address && a.columns == columns;
  });
  if (place == memory.allocations.end()) {
    report("tcgen05", meeting.site, "tcgen05_dealloc of %d columns at %#x, which were not allocated so", columns,
           address);
    stop();
  }
  if (checked()) check_tensor_free({place->first, columns, -1}, meeting.site);
  memory.allocations.erase(place);
}

}  // namespace

TensorMemory& tensor_memory(uint32_t address, int columns, char const* what, Site site) {
  int const first = column_of(address);
  if (block->tensor)
    for (Allocation const& a : block->tensor->allocations)
      if (first >= a.first && first + columns <= a.first + a.columns) return *block->tensor;
  report("tcgen05", site, "%s: columns %d to %d of tensor memory are not allocated", what, first, first + columns - 1);
  stop();
}

void tcgen05_alloc(uint32_t destination, int columns, Site site) {
  AllocationArguments arguments{destination, columns};
  meet(Operation::tcgen05_alloc, kAllLanes, &arguments, site, allocate);
}

void tcgen05_dealloc(uint32_t address, int columns, Site site) {
  AllocationArguments arguments{address, columns};
  meet(Operation::tcgen05_dealloc, kAllLanes, &arguments, site, deallocate);
}

void tcgen05_relinquish_alloc_permit(Site site) {
  meet(Operation::tcgen05_relinquish, kAllLanes, nullptr, site, [](Rendezvous&) { own_memory().relinquished = true; });
}

void check_tensor_memory(Block const& done) {
  if (!done.tensor) return;
  for (Allocation const& allocation : done.tensor->allocations)
    report("tcgen05", allocation.site, "a block exits with %d columns of tensor memory allocated", allocation.columns);
  for (int issuer = 0; issuer < int(done.tensor->issuers.size()); issuer++) {
    Issuer const& issued = done.tensor->issuers[size_t(issuer)];
    auto const waited = [&](Thread const& thread) {
      return thread.clock.row->known[issuer_column(issuer)] >= issued.issued;
    };
    auto const threads = done.threads.begin();
    bool const unknown = checked() && std::none_of(threads, threads + done.thread_count, waited);
    if (!issued.queue.empty() || unknown)
      report("outstanding", issued.last, "a block exits before this product has been waited for");
  }
}

}  // namespace emulator
