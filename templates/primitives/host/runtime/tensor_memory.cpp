// Tensor memory: allocation, and the order of the accesses that several threads and the tensor cores make.
#include "tensor_memory.h"

#include <algorithm>

#include "collective.h"
#include "report.h"
#include "shadow.h"

namespace emulator {

namespace {

constexpr int kUnit = 32;  // columns
constexpr uint32_t kUntouched = ~0u;

// Room for `columns`: the lowest, the highest, or any, since no kernel may count on one.
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

void check_columns(int columns, Site site) {
  if (columns >= kUnit && columns <= kTensorColumns && (columns & (columns - 1)) == 0) return;
  report("tcgen05", site, "tcgen05_alloc of %d columns: 32, 64, 128, 256 and 512 are possible", columns);
  stop();
}

void allocate(Rendezvous& meeting) {
  auto const [destination, columns] = uniform_arguments(meeting, "tcgen05_alloc");
  check_columns(columns, meeting.site);
  if (!block->tensor) {
    block->tensor = std::make_unique<TensorMemory>();
    block->tensor->fenced.assign(size_t(block->thread_count), checked() ? empty_row() : RowRef());
  }
  TensorMemory& memory = *block->tensor;
  if (memory.relinquished) {
    report("tcgen05", meeting.site, "tcgen05_alloc behind tcgen05_relinquish_alloc_permit");
    stop();
  }
  int const first = find_room(memory, columns);
  if (first < 0) {
    report("tcgen05", meeting.site, "tcgen05_alloc of %d columns would wait for columns that this block itself holds",
           columns);
    stop();
  }
  memory.allocations.push_back({first, columns, meeting.site});
  forget(memory, memory.allocations.back());
  counters.tensor_columns += uint64_t(columns);
  auto const address = uint32_t(first);
  std::memcpy(shared_pointer(destination, 4, 4, "tcgen05_alloc", meeting.site), &address, sizeof address);
  check_shared(destination, 4, true, meeting.site);
  join_lanes(*meeting.warp, kAllLanes);  // the write is every lane's
}

void deallocate(Rendezvous& meeting) {
  auto const [address, columns] = uniform_arguments(meeting, "tcgen05_dealloc");
  TensorMemory& memory = tensor_memory(address, columns, "tcgen05_dealloc", meeting.site);
  auto const place = std::find_if(memory.allocations.begin(), memory.allocations.end(), [&](Allocation const& a) {
    return uint32_t(a.first) == address && a.columns == columns;
  });
  if (place == memory.allocations.end()) {
    report("tcgen05", meeting.site, "tcgen05_dealloc of %d columns at %#x, which were not allocated so", columns, address);
    stop();
  }
  if (checked()) check_tensor_free({place->first, columns, -1}, meeting.site);
  memory.allocations.erase(place);
}

// ---- order

enum class Order { ordered, race, in_flight, no_fence_before, no_fence_after };

bool reaches(RowRef const& row, uint32_t column, uint32_t clock) { return clock && row->known[column] >= clock; }

// Whether what lane `lane` did is ordered before what `next` does; `fences`: with instructions that fences order.
Order lane_before(TensorAccess const& earlier, int lane, Thread const& next, bool fences) {
  auto const& did = earlier.lanes[lane];
  auto const thread = uint32_t(earlier.warp * kWarpSize + lane);
  if (thread == next.linear) return did.waited ? Order::ordered : Order::in_flight;
  RowRef const& known = next.clock.row;
  if (!reaches(known, thread, did.accessed)) return Order::race;
  if (!reaches(known, thread, did.waited)) return Order::in_flight;
  if (!reaches(known, thread, did.fenced)) return Order::no_fence_before;
  return !fences || reaches(block->tensor->fenced[next.linear], thread, did.fenced) ? Order::ordered
                                                                                    : Order::no_fence_after;
}

Order product_before(TensorAccess const& earlier, Thread const& next, bool fences) {
  auto const [column, number] = earlier.product;
  if (!reaches(next.clock.row, column, number)) return Order::in_flight;
  return !fences || reaches(block->tensor->fenced[next.linear], column, number) ? Order::ordered
                                                                                : Order::no_fence_after;
}

// Of an access of one thread: a product's, or a deallocation's.
Order before_thread(TensorAccess const& earlier, Thread const& next, bool fences) {
  if (earlier.warp < 0) return product_before(earlier, next, fences);
  for (int lane = 0; lane < kWarpSize; lane++)
    if (Order const order = lane_before(earlier, lane, next, fences); order != Order::ordered) return order;
  return Order::ordered;
}

// Of an access whose every lane touches what its like touched before it.
Order before_warp(TensorAccess const& earlier, Warp const& next) {
  for (int lane = 0; lane < kWarpSize; lane++) {
    Order const order = earlier.warp < 0 ? product_before(earlier, next.lanes[lane], true)
                                         : lane_before(earlier, lane, next.lanes[lane], true);
    if (order != Order::ordered) return order;
  }
  return Order::ordered;
}

Order order_of(TensorAccess const& earlier, TensorAccess const& next) {
  if (next.warp >= 0) return before_warp(earlier, block->warps[next.warp]);
  // Products of one thread happen in their order.
  if (earlier.warp < 0 && earlier.product.thread == next.product.thread) return Order::ordered;
  return before_thread(earlier, *self(), true);
}

void found_tensor(Order order, TensorAccess const& earlier, int column, Site site) {
  constexpr char const* kBehindProduct = "tensor memory is touched, and a product that uses it has not been waited for";
  constexpr char const* kBehindWarp =
      "tensor memory is touched behind a tcgen05_ld or _st that its warp has not waited for";
  bool const product = earlier.warp < 0;
  Stamp const other{product ? earlier.product.thread : uint32_t(earlier.warp * kWarpSize), 1};
  auto const tell = [&](char const* kind, char const* what) {
    found(kind, what, site, "tensor memory, column", size_t(column), other, earlier.site);
  };
  switch (order) {
    case Order::ordered: break;
    case Order::race: tell("race", "tensor memory is touched by two warps, and nothing orders them"); break;
    case Order::in_flight: tell("in_flight", product ? kBehindProduct : kBehindWarp); break;
    case Order::no_fence_before:
      tell("tcgen05", "another thread touched this, and no tcgen05_fence_before_thread_sync stands before the barrier");
      break;
    case Order::no_fence_after:
      tell("tcgen05", "another thread touched this, and no tcgen05_fence_after_thread_sync stands behind the barrier");
      break;
  }
}

// Checks accesses against one another; neighbouring columns mostly have the same ones.
template <class F>
class Against {
 public:
  Against(F order, Site site) : order_(order), site_(site) {}
  void operator()(TensorAccessRef const& earlier, int column) {
    if (!earlier || earlier.get() == ordered_) return;
    Order const order = order_(*earlier.get());
    found_tensor(order, *earlier.get(), column, site_);
    ordered_ = earlier.get();
  }

 private:
  F order_;
  Site site_;
  TensorAccess const* ordered_ = nullptr;
};

template <class F>
void each_cell(Columns columns, F visit) {
  for (int q = 0; q < kQuarters; q++)
    if (columns.quarter < 0 || columns.quarter == q)
      for (int c = columns.first; c < columns.first + columns.count; c++) visit(block->tensor->shadow[q][c], c);
}

template <class F>
void erase_if(std::vector<TensorAccessRef>& accesses, F gone) {
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(), gone), accesses.end());
}

// A later access of the same warp, or of the same issuer's products, stands for those before it.
bool same_source(TensorAccess const& a, TensorAccess const& b) {
  return a.warp == b.warp && (a.warp >= 0 || a.product.thread == b.product.thread);
}

}  // namespace

void destroy(TensorAccess* access) { delete access; }

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
  meet(Operation::tcgen05_relinquish, kAllLanes, nullptr, site, [](Rendezvous&) {
    if (block->tensor) block->tensor->relinquished = true;
  });
}

// ---- who touched what

TensorAccessRef access_of_warp(Warp const& warp, Site site) {
  auto* access = new TensorAccess{0, warp.index, {}, site, {}};
  for (int lane = 0; lane < kWarpSize; lane++) access->lanes[lane].accessed = warp.lanes[lane].clock.now;
  return TensorAccessRef(access);
}

TensorAccessRef access_of_product(Stamp product, Site site) {
  return TensorAccessRef(new TensorAccess{0, -1, product, site, {}});
}

void check_tensor_read(TensorAccessRef const& by, Columns columns) {
  Against against([&](TensorAccess const& earlier) { return order_of(earlier, *by.get()); }, by->site);
  each_cell(columns, [&](TensorCell& cell, int column) {
    if (!cell.initialized)
      found("uninitialized_read", "tensor memory is read that nobody has written", by->site, "tensor memory, column",
            size_t(column), {}, {});
    cell.initialized = true;
    against(cell.writer, column);
    erase_if(cell.readers, [&](TensorAccessRef const& reader) { return same_source(*reader.get(), *by.get()); });
    cell.readers.push_back(by);
  });
}

void check_tensor_write(TensorAccessRef const& by, Columns columns) {
  auto const order = [&](TensorAccess const& earlier) { return order_of(earlier, *by.get()); };
  Against writers(order, by->site), readers(order, by->site);
  each_cell(columns, [&](TensorCell& cell, int column) {
    writers(cell.writer, column);
    for (TensorAccessRef const& reader : cell.readers)
      if (reader.get() != by.get()) readers(reader, column);
    cell.initialized = true;
    cell.writer = by;
    cell.readers.clear();
  });
}

void check_tensor_free(Columns columns, Site site) {
  auto const order = [](TensorAccess const& earlier) { return before_thread(earlier, *self(), false); };
  Against writers(order, site), readers(order, site);
  each_cell(columns, [&](TensorCell& cell, int column) {
    writers(cell.writer, column);
    for (TensorAccessRef const& reader : cell.readers) readers(reader, column);
  });
}

void note_waited(std::vector<TensorMove> const& moves, Warp const& warp) {
  for (TensorMove const& move : moves) {
    for (int lane = 0; lane < kWarpSize; lane++) move.access->lanes[lane].waited = warp.lanes[lane].clock.now;
    block->tensor->unfenced[warp.index].push_back(move.access);
  }
}

void tcgen05_fence_before_thread_sync() {
  if (!checked() || !block->tensor) return;
  Thread const* thread = self();
  auto& accesses = block->tensor->unfenced[thread->warp];
  for (TensorAccessRef const& access : accesses)
    if (auto& lane = access->lanes[thread->lane]; !lane.fenced) lane.fenced = thread->clock.now;
  erase_if(accesses, [](TensorAccessRef const& access) {
    bool const forgotten = access->references == 1;  // no cell has it any more
    return forgotten || std::all_of(access->lanes, access->lanes + kWarpSize, [](auto& lane) { return lane.fenced; });
  });
}

void tcgen05_fence_after_thread_sync() {
  if (checked() && block->tensor) block->tensor->fenced[current->linear] = self()->clock.row;
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
