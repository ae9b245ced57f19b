// Checks of tensor memory: the order of accesses by threads and by tensor cores.
#include <algorithm>

#include "report.h"
#include "shadow.h"
#include "tensor_memory.h"

namespace emulator {

namespace {

enum class Order { ordered, race, in_flight, no_fence_before, no_fence_after };

bool reaches(RowRef const& row, uint32_t column, uint32_t clock) { return clock && row->known[column] >= clock; }

// Whether the access of lane `lane` is ordered before `next`; `fences`: whether fences are required.
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

// For an access by one thread: a product or a deallocation.
Order before_thread(TensorAccess const& earlier, Thread const& next, bool fences) {
  if (earlier.warp < 0) return product_before(earlier, next, fences);
  for (int lane = 0; lane < kWarpSize; lane++)
    if (Order const order = lane_before(earlier, lane, next, fences); order != Order::ordered) return order;
  return Order::ordered;
}

// For an access in which every lane touches what the same lane accessed before.
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
  // Products of one thread execute in order.
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
    found(kind, what, site, "tensor memory", size_t(column), other, earlier.site);
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

// Checks accesses against each other; adjacent columns usually have the same ones, so results are reused.
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

// A later access by the same warp, or by products of the same issuer, covers the earlier ones.
bool same_source(TensorAccess const& a, TensorAccess const& b) {
  return a.warp == b.warp && (a.warp >= 0 || a.product.thread == b.product.thread);
}

}  // namespace

void destroy(TensorAccess* access) { delete access; }

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
      found("uninitialized_read", "tensor memory is read before it is written", by->site, "tensor memory",
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
  auto& unfenced = block->tensor->unfenced[warp.index];
  // No cell refers to it any more.
  erase_if(unfenced, [](TensorAccessRef const& access) { return access->references == 1; });
  for (TensorMove const& move : moves) {
    for (int lane = 0; lane < kWarpSize; lane++) move.access->lanes[lane].waited = warp.lanes[lane].clock.now;
    unfenced.push_back(move.access);
  }
}

void tcgen05_fence_before_thread_sync() {
  if (!checked() || !block->tensor) return;
  Thread const* thread = self();
  auto& accesses = block->tensor->unfenced[thread->warp];
  for (TensorAccessRef const& access : accesses)
    if (auto& lane = access->lanes[thread->lane]; !lane.fenced) lane.fenced = thread->clock.now;
  erase_if(accesses, [](TensorAccessRef const& access) {
    return std::all_of(access->lanes, access->lanes + kWarpSize, [](auto& lane) { return lane.fenced; });
  });
}

void tcgen05_fence_after_thread_sync() {
  if (checked() && block->tensor) block->tensor->fenced[current->linear] = self()->clock.row;
}

}  // namespace emulator
