// The state of a launch: threads as fibers, warps, blocks. There is one launch at a time, on one OS thread.
#pragma once
#include <memory>
#include <vector>

#include "runtime_api.h"
#include "banks.h"
#include "clock.h"

namespace emulator {

constexpr int kWarpSize = 32;
constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / kWarpSize;
constexpr uint32_t kAllLanes = ~0u;

enum class Schedule : int32_t { order, reverse, random };
// When asynchronous operations take effect: at issue, as late as their wait allows, or either at random.
enum class Timing : int32_t { early, late, random };

// See tuner/backends/tensor_cores.py.
struct SumRule {
  int32_t fraction_bits, step_bytes, zero_exponent;
};

struct Options {
  Schedule schedule;
  Timing timing;
  int32_t checked;
  SumRule mma_sync, wgmma, tcgen05;
  uint64_t seed;
  double most_seconds;  // limit of the thread's CPU time; 0: none
};

struct Block;
struct Warp;
struct BulkStore;     // bulk.h
struct Cluster;       // cluster.h
struct Transfer;      // bulk.h
struct Mbarrier;      // mbarrier.h
struct Reach;         // cluster.h
struct SharedCell;    // shadow.h
struct TensorMemory;  // tensor_memory.h
struct WgmmaQueue;    // wgmma.h

struct AsyncCopy {
  uint32_t dst;
  void const* src;
  int bytes, src_bytes;
  bool done;
  Site site;
};

struct Thread : ThreadIndex {
  Block* block;
  Warp* own_warp;
  void* stack_pointer;
  unsigned char* stack;  // lowest address
  bool exited;
  // The wait that a deadlock report names.
  char const* waiting_for;
  Site waiting_at;
  uint32_t waiting_id;
  // Asynchronous copies: the open group, and the committed groups, oldest first.
  std::vector<AsyncCopy> open_copies;
  std::vector<std::vector<AsyncCopy>> copy_groups;
  std::vector<BulkStore> open_stores;
  std::vector<std::vector<BulkStore>> store_groups;
  // The last value read by an atomic load, used to detect spinning.
  void const* polled;
  uint64_t polled_value;
  uint32_t cluster_arrivals, cluster_waits;  // in the cluster barrier
  bool unfenced_acquire;  // no proxy fence has followed the acquire
  Clock clock;
};

enum class Operation {
  none, syncwarp, shuffle, reduce, cluster_arrive, cluster_wait,  // completed by the remaining lanes
  setmaxnreg, ldmatrix, stmatrix, mma, wgmma, wgmma_commit, wgmma_wait,  // require all 32 lanes
  elect, tcgen05_alloc, tcgen05_dealloc, tcgen05_relinquish, tcgen05_ld, tcgen05_st, tcgen05_wait_ld, tcgen05_wait_st,
};

// Lanes of a warp that have arrived at one operation; the last one executes it for all.
struct Rendezvous {
  Operation operation;
  Site site;
  uint32_t mask, arrived;
  void* arguments[kWarpSize];  // each lane's arguments, on its own stack
  Warp* warp;
};

struct Warp {
  Block* block;
  Thread* lanes;
  int index;
  uint32_t alive;
  uint32_t ready, spinning;
  Rendezvous rendezvous[8];
  std::vector<Site> claims;  // sites of setmaxnreg calls, in order
  std::vector<BankAccess> bank_accesses;  // since the lanes last converged; checked mode
};

struct Barrier {
  int expected, arrived;
  Site site;
  uint32_t came[kMaxWarps];  // arrived lanes, by warp
  Site from[kMaxWarps];  // site of the arrival
  uint32_t waiting[kMaxWarps];
  Gather joined;
};

struct SharedMemory {
  unsigned char* map;  // the whole reservation, of which only the window is accessible
  unsigned char* base;  // 1024-byte aligned
  uint32_t size;
};

// A resident block. Later blocks reuse its storage, as on an SM.
struct Block {
  Index index;
  uint32_t linear;  // linear index in the grid
  int thread_count, warp_count, alive;
  std::vector<Thread> threads;
  Warp warps[kMaxWarps];
  uint32_t ready_warps;
  int last_warp;
  Barrier barriers[16];
  SharedMemory shared;
  std::vector<SharedCell> cells;  // checked mode: one cell per two bytes of shared memory
  std::vector<Mbarrier> mbarriers;
  std::vector<Transfer> transfers;  // bulk copies in flight
  std::vector<WgmmaQueue> wgmma;         // by warp
  std::unique_ptr<TensorMemory> tensor;  // null until the first allocation
  Cluster* cluster;  // a cluster of one block if the launch has no clusters
  std::vector<Reach> reached;  // remote operations by threads of other blocks
  uint32_t cluster_waiting[kMaxWarps];
  Gather cluster_arriving;
  RowRef cluster_known;  // join over the threads of the last cluster barrier; may be null
  uint64_t progress_seen;
  bool paused;  // yields to other blocks although its threads could run
};

struct Grid {
  Options options;
  void (*entry)(void**);
  void** arguments;
  uint32_t blocks, threads, shared_bytes;
  uint32_t cluster;  // blocks per cluster
  bool mixes_clusters;  // random schedule, clusters of several blocks
  uint32_t started, finished;
  std::vector<Block*> resident, spare;
  uint64_t progress;  // number of events that could end another block's wait
  bool stopped;
};

extern Grid grid;
extern Block* block;  // block of the running thread

inline Thread* self() { return static_cast<Thread*>(current); }
inline Warp& warp_of(Thread* thread) { return *thread->own_warp; }
inline bool checked() { return grid.options.checked; }

// Whether this access of a thread of `other` is ordered before the running thread's next one.
inline bool ordered_before(uint32_t other, Stamp stamp, Access access) {
  Thread const* thread = self();
  return other == thread->block->linear ? knows(thread->clock, thread->linear, stamp)
                                        : knows_foreign(thread->clock, other, stamp, access);
}

uint64_t random_bits();
uint32_t random_below(uint32_t n);

}  // namespace emulator
