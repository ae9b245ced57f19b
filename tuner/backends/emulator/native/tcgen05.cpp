// tcgen05: products in tensor memory with their completion times, and moves between tensor memory and registers.
#include "tcgen05.h"

#include <algorithm>
#include <cstring>

#include "collective.h"
#include "mbarrier.h"
#include "report.h"
#include "shadow.h"
#include "tensor_core.h"

namespace emulator {

namespace {

constexpr int kColumnsOfA = kK / 2;  // columns of tensor memory
constexpr uint32_t kInFlight = ~0u;  // value of destination registers until an asynchronous tcgen05.ld completes

[[noreturn]] void refuse(Site site, char const* what, uint64_t value) {
  report("tcgen05", site, "%s (%#llx)", what, static_cast<unsigned long long>(value));
  stop();
}

// ---- descriptors

SharedOperand decode_operand(uint64_t descriptor, int major, Site site) {
  int const mode = int(descriptor >> 61);
  if ((descriptor >> 46 & 7) != 1) refuse(site, "a descriptor's bits 46 to 48 are 1 on sm_100", descriptor);
  if (descriptor >> 49 & 0xfff) refuse(site, "a descriptor with a base offset or an absolute stride", descriptor);
  if (mode % 2) refuse(site, "a descriptor with a swizzle that is not emulated", descriptor);
  SharedOperand const operand{bytes_field(descriptor, 0), bytes_field(descriptor, 16), bytes_field(descriptor, 32),
                              mode == 0 ? Swizzle::kNone : Swizzle(4 - mode / 2), major};
  auto const span = uint32_t(swizzle_span(operand.swizzle));
  if (operand.swizzle != Swizzle::kNone && operand.start % (8 * span) >= span)
    refuse(site, "a swizzled operand starts within a pattern, and not in its first row", operand.start);
  return operand;
}

TensorProduct decode(Tcgen05Operands const& o, Site site) {
  uint32_t const i = o.instruction;
  auto const bits = [=](int shift, int width) { return int(i >> shift & ((1u << width) - 1)); };
  int const n = bits(17, 6) * 8, format = bits(7, 3);
  if (bits(0, 4) || bits(6, 1) || bits(13, 2) || bits(23, 1) || bits(29, 3))
    refuse(site, "an instruction with bits of what is not emulated: sparsity, saturation, negation, shifts", i);
  if (bits(4, 2) != 1) refuse(site, "an instruction whose accumulators are not fp32", i);
  if (format > 1 || bits(10, 3) != format) refuse(site, "an instruction whose operands are not both fp16 or bf16", i);
  if (bits(24, 5) != kTensorLanes / 16) refuse(site, "an instruction whose M is not 128", i);
  if (n < 16 || n > 256 || n % 16) refuse(site, "an instruction whose N is not 16, 32, ..., 256", i);
  if (o.a_in_tensor_memory && bits(15, 1)) refuse(site, "an instruction with A in tensor memory and not K-major", i);
  Element const element = format ? Element::bf16 : Element::fp16;
  TensorProduct product{o.d, n, element, o.a_in_tensor_memory, o.accumulate, uint32_t(o.a), {}, {}, site};
  product.b = decode_operand(o.b, bits(16, 1), site);
  if (!o.a_in_tensor_memory) product.a = decode_operand(o.a, bits(15, 1), site);
  return product;
}

// ---- the product

template <class F>
void each_shared_row(TensorProduct const& product, F visit) {
  auto const at = [&](uint32_t address, int, int) { visit(address); };
  each_core_row(product.b, 0, product.n, at);
  if (!product.a_in_tensor_memory) each_core_row(product.a, 0, kTensorLanes, at);
}

void load_a(float (&a)[kK][kTensorLanes], TensorProduct const& product) {
  if (!product.a_in_tensor_memory) {
    load_operand(a[0], kTensorLanes, product.a, 0, kTensorLanes, product.element, "tcgen05_mma", product.site);
    return;
  }
  for (int m = 0; m < kTensorLanes; m++)
    for (int k = 0; k < kK; k++) {
      uint32_t const pair = block->tensor->cells[m][column_of(product.a_address) + k / 2];
      a[k][m] = widen(uint16_t(pair >> k % 2 * 16), product.element);
    }
}

void multiply(TensorProduct const& product) {
  alignas(32) static float a[kK][kTensorLanes], b[kK * kMostColumns];
  static Tile<kK * kTensorLanes> tile_a;
  static Tile<kK * kMostColumns> tile_b;
  alignas(32) float c[kMostColumns];
  int const n = product.n;
  load_a(a, product);
  load_operand(b, n, product.b, 0, n, product.element, "tcgen05_mma", product.site);
  fill(tile_a, a[0], kK * kTensorLanes, least_exponent(product.element));
  fill(tile_b, b, kK * n, least_exponent(product.element));
  TowardsZero const mode;
  for (int m = 0; m < kTensorLanes; m++) {
    uint32_t* const d = block->tensor->cells[m] + column_of(product.d);
    if (product.accumulate)
      std::memcpy(c, d, sizeof(float) * size_t(n));
    else
      std::fill_n(c, n, 0.0f);
    for (int j = 0; j < n; j += 8)
      add_products<kK, kElementBytes>(c + j, {tile_a.value + m, tile_a.exponent + m, kTensorLanes},
                               {tile_b.value + j, tile_b.exponent + j, n}, grid.options.tcgen05);
    std::memcpy(d, c, sizeof(float) * size_t(n));
  }
}

// The issuer's column in the clocks.
uint32_t clock_of(Issuer const& issuer) {
  return uint32_t(issuer_column(int(&issuer - block->tensor->issuers.data())));
}

void finish(Issuer& issuer) {
  Issuer::Item const item = std::move(issuer.queue.front());
  issuer.queue.pop_front();
  if (item.commits) {
    land_commit(*block, item.barrier, item.known, {clock_of(issuer), item.number}, item.site);
    return;
  }
  multiply(item.product);
  each_shared_row(item.product, [](uint32_t address) { end_block_read(*block, address, kCoreRowBytes); });
}

// ---- issue

Issuer& issuer_of(Thread const& thread, Site site) {
  auto& issuers = block->tensor->issuers;
  for (Issuer& issuer : issuers)
    if (issuer.thread == thread.linear) return issuer;
  if (int(issuers.size()) == kIssuers)
    refuse(site, "more threads issue products than are emulated: one of a warp does, by elect_one", kIssuers);
  issuers.push_back({thread.linear, 0, site, {}});
  return issuers.back();
}

void enqueue(Issuer& issuer, Issuer::Item item) {
  Timing const timing = grid.options.timing;
  bool const now = timing == Timing::early || (timing == Timing::random && issuer.queue.empty() && random_below(2));
  issuer.queue.push_back(std::move(item));
  if (now) finish(issuer);
}

// Ends the launch if the product accesses unallocated cells.
void check_operands(TensorProduct const& product) {
  Site const site = product.site;
  if (lane_of(product.d)) refuse(site, "a product's D does not begin in lane 0", product.d);
  tensor_memory(product.d, product.n, "tcgen05_mma", site);
  each_shared_row(product, [=](uint32_t address) {
    shared_pointer(address, kCoreRowBytes, kCoreRowBytes, "tcgen05_mma", site);
  });
  if (!product.a_in_tensor_memory) return;
  if (lane_of(product.a_address)) refuse(site, "a product's A does not begin in lane 0", product.a_address);
  tensor_memory(product.a_address, kColumnsOfA, "tcgen05_mma", site);
  int const a = column_of(product.a_address), d = column_of(product.d);
  if (a < d + product.n && d < a + kColumnsOfA) refuse(site, "a product's A lies within its D", product.a_address);
}

// Checked mode: checks the product's reads and writes against other accesses.
void check_order(TensorProduct const& product, Stamp stamp) {
  each_shared_row(product, [&](uint32_t address) {
    begin_block_read(address, kCoreRowBytes, block->linear, stamp, product.site);
  });
  TensorAccessRef const access = access_of_product(stamp, product.site);
  Columns const d{column_of(product.d), product.n, -1};
  if (product.a_in_tensor_memory) check_tensor_read(access, {column_of(product.a_address), kColumnsOfA, -1});
  if (product.accumulate) check_tensor_read(access, d);
  check_tensor_write(access, d);
}

// ---- registers

struct MoveArguments {
  uint32_t address;
  void* to;  // destination of a load
  void const* from;  // source of a store
  int registers;
};

// Moves the data of all lanes after checking that the warp may access the address.
TensorMove begin_move(Rendezvous& meeting, char const* what) {
  auto const& first = argument<MoveArguments>(meeting, 0);
  for (int lane = 1; lane < kWarpSize; lane++)
    if (argument<MoveArguments>(meeting, lane).address != first.address) {
      report("tcgen05", meeting.site, "%s: the lanes of a warp give different addresses", what);
      stop();
    }
  tensor_memory(first.address, first.registers, what, meeting.site);
  int const own = meeting.warp->index % kQuarters * kWarpSize;
  if (lane_of(first.address) != own) {
    report("tcgen05", meeting.site, "%s at lane %d of tensor memory: warp %d has lanes %d to %d", what,
           lane_of(first.address), meeting.warp->index, own, own + kWarpSize - 1);
    stop();
  }
  counters.tensor_bytes += sizeof(uint32_t) * kWarpSize * uint64_t(first.registers);
  TensorMove move{};
  move.address = first.address;
  move.registers = first.registers;
  if (checked()) move.access = access_of_warp(*meeting.warp, meeting.site);
  return move;
}

Columns columns_of(TensorMove const& move, Warp const& warp) {
  return {column_of(move.address), move.registers, warp.index % kQuarters};
}

uint32_t* cells_of(TensorMove const& move, int lane) {
  return block->tensor->cells[lane_of(move.address) + lane] + column_of(move.address);
}

void perform_load(TensorMove& move) {
  for (int lane = 0; lane < kWarpSize; lane++)
    std::memcpy(move.to[lane], cells_of(move, lane), sizeof(uint32_t) * size_t(move.registers));
  move.done = true;
}

void perform_store(TensorMove& move) {
  for (int lane = 0; lane < kWarpSize; lane++)
    std::copy_n(&move.data[size_t(lane * move.registers)], move.registers, cells_of(move, lane));
  move.done = true;
}

bool moves_at_issue() {
  return grid.options.timing == Timing::early || (grid.options.timing == Timing::random && random_below(2));
}

void load(Rendezvous& meeting) {
  TensorMove move = begin_move(meeting, "tcgen05_ld");
  Warp& warp = *meeting.warp;
  for (int lane = 0; lane < kWarpSize; lane++) move.to[lane] = argument<MoveArguments>(meeting, lane).to;
  if (checked()) check_tensor_read(move.access, columns_of(move, warp));
  if (moves_at_issue())
    perform_load(move);
  else
    for (void* to : move.to) std::fill_n(static_cast<uint32_t*>(to), move.registers, kInFlight);
  block->tensor->loads[warp.index].push_back(std::move(move));
}

void store(Rendezvous& meeting) {
  TensorMove move = begin_move(meeting, "tcgen05_st");
  Warp& warp = *meeting.warp;
  for (int lane = 0; lane < kWarpSize; lane++) {
    auto const* from = static_cast<uint32_t const*>(argument<MoveArguments>(meeting, lane).from);
    move.data.insert(move.data.end(), from, from + move.registers);
  }
  if (checked()) check_tensor_write(move.access, columns_of(move, warp));
  if (moves_at_issue()) perform_store(move);
  block->tensor->stores[warp.index].push_back(std::move(move));
}

void wait_for_moves(std::vector<TensorMove>& moves, Warp const& warp, void (*perform)(TensorMove&)) {
  for (TensorMove& move : moves)
    if (!move.done) perform(move);
  if (checked()) note_waited(moves, warp);
  moves.clear();
}

}  // namespace

void tcgen05_mma(Tcgen05Operands const& operands, Site site) {
  TensorProduct const product = decode(operands, site);
  check_operands(product);
  Issuer& issuer = issuer_of(*self(), site);
  issuer.issued++;
  issuer.last = site;
  if (checked()) check_order(product, {clock_of(issuer), issuer.issued});
  counters.tcgen05_m16n8k16 += uint64_t(product.n);
  enqueue(issuer, {false, product, 0, {}, issuer.issued, site});
}

void tcgen05_commit(uint32_t barrier, Site site) {
  begin_commit(barrier, site);
  if (!block->tensor) refuse(site, "tcgen05_commit without tensor memory", barrier);
  Issuer& issuer = issuer_of(*self(), site);
  enqueue(issuer, {true, {}, barrier, self()->clock.row, issuer.issued, site});
}

void tcgen05_ld(void* r, int registers, uint32_t address, Site site) {
  MoveArguments arguments{address, r, nullptr, registers};
  meet(Operation::tcgen05_ld, kAllLanes, &arguments, site, load);
}

void tcgen05_st(uint32_t address, void const* r, int registers, Site site) {
  MoveArguments arguments{address, nullptr, r, registers};
  meet(Operation::tcgen05_st, kAllLanes, &arguments, site, store);
}

void tcgen05_wait_ld(Site site) {
  meet(Operation::tcgen05_wait_ld, kAllLanes, nullptr, site, [](Rendezvous& meeting) {
    if (block->tensor) wait_for_moves(block->tensor->loads[meeting.warp->index], *meeting.warp, perform_load);
  });
}

void tcgen05_wait_st(Site site) {
  meet(Operation::tcgen05_wait_st, kAllLanes, nullptr, site, [](Rendezvous& meeting) {
    if (block->tensor) wait_for_moves(block->tensor->stores[meeting.warp->index], *meeting.warp, perform_store);
  });
}

bool has_products(Block const& of) {
  if (!of.tensor) return false;
  auto const& issuers = of.tensor->issuers;
  return std::any_of(issuers.begin(), issuers.end(), [](Issuer const& issuer) { return !issuer.queue.empty(); });
}

void finish_any_product() {
  std::vector<Issuer*> busy;
  for (Issuer& issuer : block->tensor->issuers)
    if (!issuer.queue.empty()) busy.push_back(&issuer);
  size_t const i = grid.options.timing == Timing::random ? random_below(uint32_t(busy.size())) : 0;
  finish(*busy[i]);
}

}  // namespace emulator
