// A launch: block residency, block scheduling, and checks before and after.
#include <algorithm>
#include <cstring>

#include "bulk.h"
#include "cluster.h"
#include "collective.h"
#include "fault.h"
#include "fiber.h"
#include "mbarrier.h"
#include "memory.h"
#include "report.h"
#include "scheduler.h"
#include "shadow.h"
#include "tcgen05.h"
#include "wgmma.h"

namespace emulator {

Grid grid;
ThreadIndex* current;
Index block_index, block_dim, grid_dim;

namespace {

constexpr size_t kResidentThreads = 16384;  // limited by stacks: each needs 2 of a process's 65530 mappings
constexpr size_t kMixedBlocks = 8;  // maximum number of resident blocks before one has to wait
constexpr int kVainRounds = 100;  // rounds in which all blocks poll before a livelock is reported

std::vector<Counters>* block_counters;
uint64_t random_state;

// ---- cluster order

uint32_t mixed(uint32_t n, uint32_t key) {  // a permutation of [0, 2^32)
  n = (n ^ key) * 0x9e3779b1u;
  return (n ^ n >> 16) * 0x85ebca6bu;
}

// By cluster: each consists of consecutive blocks.
std::vector<uint32_t> cluster_order() {
  std::vector<uint32_t> order(grid.blocks / grid.cluster);
  for (uint32_t i = 0; i < order.size(); i++) order[i] = i;
  if (grid.options.schedule == Schedule::reverse) std::reverse(order.begin(), order.end());
  if (grid.options.schedule == Schedule::random) {
    auto const key = uint32_t(grid.options.seed);
    std::sort(order.begin(), order.end(), [=](uint32_t a, uint32_t b) { return mixed(a, key) < mixed(b, key); });
  }
  return order;
}

// ---- one block

void run_thread() {
  grid.entry(grid.arguments);
  finish_stores();
  check_outstanding();
  exit_thread();
}

void start_thread(Block& starting, int i, RowRef const& row) {
  Thread& thread = starting.threads[size_t(i)];
  auto const n = unsigned(i);
  thread.index = {n % block_dim.x, n / block_dim.x % block_dim.y, n / block_dim.x / block_dim.y};
  thread.linear = n;
  thread.lane = n % kWarpSize;
  thread.warp = n / kWarpSize;
  thread.block = &starting;
  thread.own_warp = &starting.warps[thread.warp];
  thread.exited = false;
  thread.waiting_for = "start";
  thread.open_copies.clear();
  thread.copy_groups.clear();
  thread.open_stores.clear();
  thread.store_groups.clear();
  thread.polled = nullptr;
  thread.unfenced_acquire = false;
  thread.cluster_arrivals = thread.cluster_waits = 0;
  thread.clock = {1, row, {}, {}};
  prepare(&thread, run_thread);
  make_ready(starting.warps[thread.warp], 1u << thread.lane);
}

void start_warps(Block& starting) {
  starting.ready_warps = 0;
  starting.last_warp = 0;
  for (int w = 0; w < starting.warp_count; w++) {
    int const lanes = std::min(kWarpSize, starting.thread_count - w * kWarpSize);
    Warp& warp = starting.warps[w];
    warp = {};
    warp.block = &starting;
    warp.lanes = &starting.threads[size_t(w) * kWarpSize];
    warp.index = w;
    warp.alive = lanes == kWarpSize ? kAllLanes : (1u << lanes) - 1;
  }
  for (Barrier& barrier : starting.barriers) {
    barrier.arrived = 0;
    std::fill_n(barrier.waiting, kMaxWarps, 0u);
    std::fill_n(barrier.came, kMaxWarps, 0u);
    barrier.joined.take();
  }
}

Block* take_block() {
  if (!grid.spare.empty()) {
    Block* reused = grid.spare.back();
    grid.spare.pop_back();
    return reused;
  }
  return new Block();
}

Block* start_block(uint32_t linear, Cluster* cluster) {
  Block* starting = take_block();
  starting->linear = linear;
  starting->cluster = cluster;
  starting->index = {linear % grid_dim.x, linear / grid_dim.x % grid_dim.y, linear / grid_dim.x / grid_dim.y};
  starting->thread_count = starting->alive = int(grid.threads);
  starting->warp_count = (starting->thread_count + kWarpSize - 1) / kWarpSize;
  while (starting->threads.size() < grid.threads) {
    starting->threads.emplace_back();
    starting->threads.back().stack = take_stack();
  }
  start_warps(*starting);
  starting->mbarriers.clear();
  starting->transfers.clear();
  starting->reached.clear();
  std::fill_n(starting->cluster_waiting, kMaxWarps, 0u);
  starting->cluster_arriving.take();
  starting->cluster_known = {};
  start_wgmma(*starting);
  starting->tensor = nullptr;
  map_shared(starting->shared, grid.shared_bytes);
  poison_shared(starting->shared);
  grid.resident.push_back(starting);
  grid.started++;
  starting->progress_seen = grid.progress;
  starting->paused = true;
  if (checked()) start_shadow(*starting);
  RowRef const row = checked() ? empty_row() : RowRef();
  for (int i = 0; i < starting->thread_count; i++) start_thread(*starting, i, row);
  return starting;
}

// Starts all blocks of a cluster, and returns the one that runs first.
Block* start_cluster(uint32_t index) {
  auto* cluster = new Cluster{{}, int(grid.cluster), 0, 0};
  for (uint32_t rank = 0; rank < grid.cluster; rank++)
    cluster->blocks.push_back(start_block(index * grid.cluster + rank, cluster));
  return grid.options.schedule == Schedule::reverse ? cluster->blocks.back() : cluster->blocks.front();
}

void end_cluster(Cluster* done) {
  for (Block* member : done->blocks) {
    auto const place = std::find(grid.resident.begin(), grid.resident.end(), member);
    if (place != grid.resident.end()) grid.resident.erase(place);
    grid.spare.push_back(member);
  }
  delete done;
}

void retire(Block* done) {
  check_shared_canary(done->shared);
  check_claims(*done);
  check_warpgroups(*done);
  check_transfers(*done);
  check_tensor_memory(*done);
  check_reached(*done);
  grid.resident.erase(std::find(grid.resident.begin(), grid.resident.end(), done));
  if (--done->cluster->running == 0) end_cluster(done->cluster);
  grid.finished++;
  grid.progress++;
}

// ---- the grid

// In reverse order only one cluster is resident: a block that waits for a block that has not started deadlocks.
bool may_start() {
  if (grid.options.schedule == Schedule::reverse && !grid.resident.empty()) return false;
  return grid.started < grid.blocks && (grid.resident.size() + grid.cluster) * grid.threads <= kResidentThreads;
}

bool runnable(Block const* candidate) { return candidate->paused || candidate->progress_seen != grid.progress; }

// Returns a resident block that paused or may stop polling; null: start another one.
Block* waiting_block() {
  if (grid.options.schedule == Schedule::random && !grid.resident.empty()) {
    if (may_start() && grid.resident.size() < kMixedBlocks && random_below(2)) return nullptr;
    Block* any = grid.resident[random_below(uint32_t(grid.resident.size()))];
    if (runnable(any)) return any;
  }
  for (Block* candidate : grid.resident)
    if (runnable(candidate)) return candidate;
  if (may_start()) return nullptr;
  return grid.resident.empty() ? nullptr : grid.resident.front();
}

void give_up(char const* kind, char const* message) {
  report_deadlock(kind, message);
  grid.stopped = true;
}

void run_block(Block* running) {
  running->progress_seen = grid.progress;
  running->paused = false;
  wake_spinning(*running);
  Counters const before = counters;
  run(running);
  auto const* from = reinterpret_cast<uint64_t const*>(&before);
  auto const* to = reinterpret_cast<uint64_t const*>(&counters);
  auto* total = reinterpret_cast<uint64_t*>(&(*block_counters)[running->linear]);
  for (size_t i = 0; i < sizeof(Counters) / sizeof(uint64_t); i++) total[i] += to[i] - from[i];
  if (grid.stopped) return;
  if (running->alive == 0)
    retire(running);
  else if (!running->paused && !spins(*running) && !may_go_on(*running->cluster))
    give_up("deadlock", "no thread can end this wait");
}

void run_grid() {
  std::vector<uint32_t> const order = cluster_order();
  int vain = 0;
  uint64_t progress = grid.progress;
  while (grid.finished < grid.blocks && !grid.stopped) {
    Block* running = waiting_block();
    if (!running) running = start_cluster(order[grid.started / grid.cluster]);
    run_block(running);
    if (running->alive) std::rotate(grid.resident.begin(), grid.resident.begin() + 1, grid.resident.end());
    vain = grid.progress == progress && !running->paused && !may_start() ? vain + 1 : 0;
    progress = grid.progress;
    if (vain > kVainRounds * int(grid.resident.size()) && !grid.stopped)
      give_up("livelock", grid.started < grid.blocks ? "the resident blocks poll for one that cannot start"
                                                     : "every block polls for a value that will not be stored");
  }
}

void clear_grid() {
  while (!grid.resident.empty()) end_cluster(grid.resident.front()->cluster);
  current = nullptr;
}

}  // namespace

uint64_t random_bits() {  // xorshift64*
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state * 0x2545f4914f6cdd1dull;
}

uint32_t random_below(uint32_t n) { return uint32_t((random_bits() >> 32) * n >> 32); }

// Runs `entry` over the grid; findings and counters remain available until the next launch.
extern "C" EMULATOR_API void emulator_launch(void (*entry)(void**), void** arguments, Index const* grid_size,
                                             Index const* block_size, uint32_t cluster, uint32_t shared_bytes,
                                             Options const* options) {
  grid_dim = *grid_size;
  block_dim = *block_size;
  grid.options = *options;
  grid.entry = entry;
  grid.arguments = arguments;
  grid.blocks = grid_dim.x * grid_dim.y * grid_dim.z;
  grid.threads = block_dim.x * block_dim.y * block_dim.z;
  grid.cluster = cluster;
  grid.mixes_clusters = cluster > 1 && options->schedule == Schedule::random;
  grid.shared_bytes = shared_bytes;
  grid.started = grid.finished = 0;
  grid.stopped = false;
  random_state = options->seed * 0x9e3779b97f4a7c15ull + 0x1234567;
  counters = {};
  static std::vector<Counters> per_block;
  per_block.assign(grid.blocks, Counters{});
  block_counters = &per_block;
  clear_findings();
  forget_publications();
  start_launch_shadow();
  set_clock_width(int(grid.threads));
  protect_buffers();
  {
    FaultHandler const faults;
    Patience const patience(grid.options.most_seconds);
    run_grid();
  }
  clear_grid();
  release_buffers();
}

// Totals of the last launch, and the same per block.
extern "C" EMULATOR_API Counters const* emulator_counters() { return &counters; }
extern "C" EMULATOR_API Counters const* emulator_block_counters() { return block_counters->data(); }

}  // namespace emulator
