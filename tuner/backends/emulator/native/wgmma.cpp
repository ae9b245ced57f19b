// wgmma: operands in shared memory by descriptor; products execute at issue, or as late as their wait.
#include "wgmma.h"

#include <cstring>

#include "collective.h"
#include "report.h"
#include "shadow.h"
#include "shared_operand.h"
#include "tensor_core.h"

namespace emulator {

namespace {

constexpr int kRows = 16;  // rows of A per warp
constexpr uint32_t kInFlightBits = 0x7fc0dead;  // a NaN in accumulators of products in flight

WgmmaQueue& queue_of(Warp const& warp) { return warp.block->wgmma[size_t(warp.index)]; }

// ---- operands in shared memory

// Bits of a descriptor outside its fields, and its base offset, which must be 0.
constexpr uint64_t kUnused = 0x3fffc000c000c000;

SharedOperand operand(uint64_t descriptor, int major) {
  int const mode = int(descriptor >> 62);
  return {bytes_field(descriptor, 0), bytes_field(descriptor, 16), bytes_field(descriptor, 32),
          mode == 0 ? Swizzle::kNone : Swizzle(4 - mode), major};
}

int first_row(Warp const& warp) { return warp.index % 4 * kRows; }

template <class F>
void each_shared_row(WgmmaProduct const& product, Warp const& warp, F visit) {
  WgmmaOperands const& o = product.lanes[0];
  auto const check = [&](uint32_t address, int, int) {
    shared_pointer(address, kCoreRowBytes, kCoreRowBytes, "wgmma", product.site);
    visit(address);
  };
  each_core_row(operand(o.b, o.b_major), 0, o.n, check);
  if (!o.a_registers) each_core_row(operand(o.a, o.a_major), first_row(warp), kRows, check);
}

// ---- the product

void load_a(float (&a)[kK][kRows], WgmmaProduct const& product, Warp const& warp) {
  WgmmaOperands const& o = product.lanes[0];
  if (!o.a_registers) {
    load_operand(a[0], kRows, operand(o.a, o.a_major), first_row(warp), kRows, o.element, "wgmma", product.site);
    return;
  }
  for (int lane = 0; lane < kWarpSize; lane++)
    for (int e = 0; e < M16N8K16::A::kElements; e++) {
      auto const bits = uint16_t(product.a[lane][e / 2] >> e % 2 * 16);
      a[M16N8K16::A::col(lane, e)][M16N8K16::A::row(lane, e)] = widen(bits, o.element);
    }
}

void multiply(float* c, Tile<kK * kRows> const& a, Tile<kK * kMostColumns> const& b, int n) {
  TowardsZero const mode;
  for (int i = 0; i < kRows; i++)
    for (int j = 0; j < n; j += 8)
      add_products<kK, kElementBytes>(c + i * n + j, {a.value + i, a.exponent + i, kRows}, {b.value + j, b.exponent + j, n},
                               grid.options.wgmma);
}

void load_accumulators(float* c, WgmmaProduct const& product, int n) {
  for (int lane = 0; lane < kWarpSize; lane++) {
    WgmmaOperands const& o = product.lanes[lane];
    for (int e = 0; e < n / 2; e++)
      c[M64K16::C::row(lane, e) * n + M64K16::C::col(lane, e)] = o.accumulate ? o.d[e] : 0;
  }
}

void store_accumulators(WgmmaProduct const& product, float const* c, int n) {
  for (int lane = 0; lane < kWarpSize; lane++)
    for (int e = 0; e < n / 2; e++)
      product.lanes[lane].d[e] = c[M64K16::C::row(lane, e) * n + M64K16::C::col(lane, e)];
}

void restore_accumulators(WgmmaProduct& product) {
  if (product.before.empty()) return;
  int const count = product.lanes[0].n / 2;
  for (int lane = 0; lane < kWarpSize; lane++) {
    float* const d = product.lanes[lane].d;
    for (int e = 0; e < count; e++)
      if (__builtin_bit_cast(uint32_t, d[e]) != kInFlightBits) {
        report("wgmma", product.site, "accumulator %d was written while this wgmma was in flight", e);
        break;
      }
    std::memcpy(d, &product.before[size_t(lane * count)], sizeof(float) * size_t(count));
  }
}

void check_a_registers(WgmmaProduct const& product) {
  if (!product.lanes[0].a_registers) return;
  for (int lane = 0; lane < kWarpSize; lane++)
    if (std::memcmp(product.a[lane], product.lanes[lane].a_registers, sizeof product.a[lane]))
      report("wgmma", product.site, "A registers were written while this wgmma was in flight");
}

void perform(WgmmaProduct& product, Warp const& warp) {
  alignas(32) static float b[kK * kMostColumns], c[kRows * kMostColumns];
  alignas(32) float a[kK][kRows];
  static Tile<kK * kMostColumns> tile_b;
  Tile<kK * kRows> tile_a;
  WgmmaOperands const& o = product.lanes[0];
  restore_accumulators(product);
  load_a(a, product, warp);
  load_operand(b, o.n, operand(o.b, o.b_major), 0, o.n, o.element, "wgmma", product.site);
  fill(tile_a, a[0], kK * kRows, least_exponent(o.element));
  fill(tile_b, b, kK * o.n, least_exponent(o.element));
  load_accumulators(c, product, o.n);
  multiply(c, tile_a, tile_b, o.n);
  store_accumulators(product, c, o.n);
  product.done = true;
}

// ---- issue

// The oldest pending product into `d` or, if null, into any accumulators; null if there is none.
WgmmaProduct* pending(WgmmaQueue& queue, float const* d) {
  auto const waits = [=](WgmmaProduct const& product) { return !product.done && (!d || product.lanes[0].d == d); };
  for (auto& group : queue.groups)
    for (WgmmaProduct& product : group)
      if (waits(product)) return &product;
  for (WgmmaProduct& product : queue.open)
    if (waits(product)) return &product;
  return nullptr;
}

void poison_accumulators(WgmmaProduct& product) {
  int const count = product.lanes[0].n / 2;
  product.before.resize(size_t(kWarpSize * count));
  for (int lane = 0; lane < kWarpSize; lane++) {
    float* const d = product.lanes[lane].d;
    std::memcpy(&product.before[size_t(lane * count)], d, sizeof(float) * size_t(count));
    for (int e = 0; e < count; e++) std::memcpy(d + e, &kInFlightBits, sizeof kInFlightBits);
  }
}

bool happens_at_issue(WgmmaQueue& queue) {
  Timing const timing = grid.options.timing;
  return timing == Timing::early || (timing == Timing::random && !pending(queue, nullptr) && random_below(2));
}

void check_uniform(WgmmaProduct const& product) {
  WgmmaOperands const& first = product.lanes[0];
  for (WgmmaOperands const& lane : product.lanes)
    if (lane.a != first.a || lane.b != first.b || lane.accumulate != first.accumulate) {
      report("wgmma", product.site, "the lanes of a warp give different descriptors or accumulate flags");
      stop();
    }
}

void check_descriptor(uint64_t descriptor, Site site) {
  if (!(descriptor & kUnused)) return;
  report("wgmma", site, "a descriptor has the bits %#llx, which are none of its fields or a base offset",
         static_cast<unsigned long long>(descriptor & kUnused));
  stop();
}

uint64_t mixed_in(uint64_t digest, uint64_t part) { return (digest ^ part) * 0x100000001b3ull; }

uint64_t digest_of(WgmmaOperands const& o) {
  uint64_t digest = 0;
  for (int e = 0; e < o.n / 2; e++) digest = mixed_in(digest, __builtin_bit_cast(uint32_t, o.d[e]));
  return digest;
}

// Without a fence since the last wait, a wgmma may only use accumulators that were not accessed since.
void check_fence(WgmmaQueue& queue, WgmmaOperands const& o, Site site) {
  if (queue.fenced) return;
  bool untouched = false;
  for (Delivered const& delivered : queue.delivered)
    untouched |= delivered.d == o.d && delivered.digest == digest_of(o);
  if (o.a_registers || !o.accumulate || !untouched)
    report("wgmma", site, "registers of this wgmma were accessed, and no wgmma_fence orders it behind that");
}

void remember(WgmmaQueue& queue, WgmmaOperands const& o) {
  for (Delivered& delivered : queue.delivered)
    if (delivered.d == o.d) {
      delivered.digest = digest_of(o);
      return;
    }
  queue.delivered.push_back({o.d, digest_of(o)});
}

void record(WgmmaQueue& queue, WgmmaProduct const& product) {
  WgmmaOperands const& o = product.lanes[0];
  for (uint64_t part : {o.a, o.b, uint64_t(o.n), uint64_t(o.accumulate)}) queue.digest = mixed_in(queue.digest, part);
  queue.issued++;
  queue.last = product.site;
}

void issue(Rendezvous& meeting) {
  Warp& warp = *meeting.warp;
  WgmmaQueue& queue = queue_of(warp);
  WgmmaProduct product{};
  product.site = meeting.site;
  for (int lane = 0; lane < kWarpSize; lane++) {
    product.lanes[lane] = argument<WgmmaOperands const>(meeting, lane);
    if (uint32_t const* a = product.lanes[lane].a_registers) std::memcpy(product.a[lane], a, sizeof product.a[lane]);
  }
  check_uniform(product);
  check_descriptor(product.lanes[0].b, meeting.site);
  if (!product.lanes[0].a_registers) check_descriptor(product.lanes[0].a, meeting.site);
  check_fence(queue, product.lanes[0], meeting.site);
  record(queue, product);
  counters.wgmma++;
  counters.wgmma_m16n8k16 += uint64_t(product.lanes[0].n) / 8;
  each_shared_row(product, warp, [&](uint32_t address) { begin_async_read(address, kCoreRowBytes, product.site); });
  if (happens_at_issue(queue))
    perform(product, warp);
  else if (!pending(queue, product.lanes[0].d))
    poison_accumulators(product);
  queue.open.push_back(std::move(product));
}

void finish(WgmmaProduct& product, Warp const& warp) {
  if (!product.done) {
    check_a_registers(product);
    perform(product, warp);
    if (WgmmaProduct* next = pending(queue_of(warp), product.lanes[0].d)) poison_accumulators(*next);
  }
  each_shared_row(product, warp, [](uint32_t address) { end_async_read(address, kCoreRowBytes); });
}

// Reads on behalf of the warp were recorded as lane 0's; every lane has now waited for them.
void tell_lanes(Warp& warp) {
  if (!checked()) return;
  RowRef const done = publish(warp.lanes[0].clock, warp.lanes[0].linear);
  for (int lane = 1; lane < kWarpSize; lane++) learn(warp.lanes[lane].clock, done);
}

void wait(Rendezvous& meeting) {
  Warp& warp = *meeting.warp;
  WgmmaQueue& queue = queue_of(warp);
  ThreadIndex* const caller = current;
  current = warp.lanes;
  while (int(queue.groups.size()) > argument<int>(meeting, 0)) {
    for (WgmmaProduct& product : queue.groups.front()) finish(product, warp);
    for (WgmmaProduct const& product : queue.groups.front()) remember(queue, product.lanes[0]);
    queue.groups.erase(queue.groups.begin());
    queue.fenced = false;
  }
  tell_lanes(warp);
  current = caller;
}

void issue_as_lane_0(Rendezvous& meeting) {
  ThreadIndex* const caller = current;
  current = meeting.warp->lanes;
  issue(meeting);
  current = caller;
}

}  // namespace

void wgmma(WgmmaOperands const& operands, Site site) {
  meet(Operation::wgmma, kAllLanes, const_cast<WgmmaOperands*>(&operands), site, issue_as_lane_0);
}

void wgmma_fence() { queue_of(warp_of(self())).fenced = true; }

void wgmma_commit(Site site) {
  meet(Operation::wgmma_commit, kAllLanes, nullptr, site, [](Rendezvous& meeting) {
    WgmmaQueue& queue = queue_of(*meeting.warp);
    queue.groups.push_back(std::move(queue.open));
    queue.open.clear();
  });
}

void wgmma_wait(int groups_in_flight, Site site) {
  meet(Operation::wgmma_wait, kAllLanes, &groups_in_flight, site, wait);
}

void start_wgmma(Block& starting) {
  starting.wgmma.clear();
  starting.wgmma.resize(size_t(starting.warp_count));
}

void check_outstanding_wgmma() {
  WgmmaQueue const& queue = queue_of(warp_of(self()));
  for (auto const& group : queue.groups)
    if (!group.empty()) report("outstanding", group.front().site, "a warp exits before this wgmma has been waited for");
  for (WgmmaProduct const& product : queue.open)
    report("outstanding", product.site, "a warp exits before this wgmma was committed and waited for");
}

void check_warpgroups(Block const& done) {
  for (int w = 0; w < done.warp_count; w++) {
    WgmmaQueue const &first = done.wgmma[size_t(w / 4 * 4)], &own = done.wgmma[size_t(w)];
    if (own.issued && w / 4 * 4 + 4 > done.warp_count)
      report("wgmma", own.last, "the block has %d warps, of which the last ones are no warpgroup", done.warp_count);
    if (own.issued == first.issued && own.digest == first.digest) continue;
    report("wgmma", own.issued ? own.last : first.last, "warp %d of its warpgroup issued other wgmma than warp 0 did",
           w % 4);
  }
}

}  // namespace emulator
