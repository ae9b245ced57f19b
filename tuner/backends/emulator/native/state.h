// The state of a launch: threads as fibers, warps, blocks. One launch at a time, on one OS thread.
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
// When asynchronous operations happen: at issue, as late as their wait allows, or either.
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
  double most_seconds;  // of the thread's CPU time; 0: as long as it takes
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
  // What it waits for, for the report of a deadlock.
  char const* waiting_for;
  Site waiting_at;
  uint32_t waiting_id;
  // Asynchronous copies: the group being filled, and the committed ones, oldest first.
  std::vector<AsyncCopy> open_copies;
  std::vector<std::vector<AsyncCopy>> copy_groups;
  std::vector<BulkStore> open_stores;
  std::vector<std::vector<BulkStore>> store_groups;
  // The last value polled by an atomic load, by which a loop that waits is known.
  void const* polled;
  uint64_t polled_value;
  uint32_t cluster_arrivals, cluster_waits;  // in the cluster's barrier
  bool unfenced_acquire;  // no proxy fence has followed it
  Clock clock;
};

enum class Operation {
  none, syncwarp, shuffle, reduce, cluster_arrive, cluster_wait,  // of the lanes that are left
  setmaxnreg, ldmatrix, stmatrix, mma, wgmma, wgmma_commit, wgmma_wait,       // of all 32
  elect, tcgen05_alloc, tcgen05_dealloc, tcgen05_relinquish, tcgen05_ld, tcgen05_st, tcgen05_wait_ld, tcgen05_wait_st,
};

// Lanes of a warp that have come to one operation; the last one runs it for all.
struct Rendezvous {
  Operation operation;
  Site site;
  uint32_t mask, arrived;
  void* arguments[kWarpSize];  // each lane's, on its own stack
  Warp* warp;
};

struct Warp {
  Block* block;
  Thread* lanes;
  int index;
  uint32_t alive;
  uint32_t ready, spinning;
  Rendezvous rendezvous[8];
  std::vector<Site> claims;  // setmaxnreg, in the order of its calls
  std::vector<BankAccess> bank_accesses;  // since its lanes last met; checked mode
};

struct Barrier {
  int expected, arrived;
  Site site;
  uint32_t came[kMaxWarps];  // lanes that have arrived, by warp
  Site from[kMaxWarps];      // where
  uint32_t waiting[kMaxWarps];
  Gather joined;
};

struct SharedMemory {
  unsigned char* map;   // the whole reservation; only the window is accessible
  unsigned char* base;  // 1024-byte aligned
  uint32_t size;
};

// A resident block. Its storage is reused by later blocks, as an SM's is.
struct Block {
  Index index;
  uint32_t linear;  // in the grid
  int thread_count, warp_count, alive;
  std::vector<Thread> threads;
  Warp warps[kMaxWarps];
  uint32_t ready_warps;
  int last_warp;
  Barrier barriers[16];
  SharedMemory shared;
  std::vector<SharedCell> cells;  // checked mode: one for two bytes of shared memory
  std::vector<Mbarrier> mbarriers;
  std::vector<Transfer> transfers;       // in flight, of the copy engine
  std::vector<WgmmaQueue> wgmma;         // by warp
  std::unique_ptr<TensorMemory> tensor;  // once it has allocated some
  Cluster* cluster;                      // of this block alone, where the launch has none
  std::vector<Reach> reached;            // by threads of other blocks
  uint32_t cluster_waiting[kMaxWarps];
  Gather cluster_arriving;
  RowRef cluster_known;  // the join over the threads of the last cluster barrier; may be null
  uint64_t progress_seen;
  bool paused;  // in favour of other blocks, though its threads could go on
};

struct Grid {
  Options options;
  void (*entry)(void**);
  void** arguments;
  uint32_t blocks, threads, shared_bytes;
  uint32_t cluster;     // blocks
  bool mixes_clusters;  // random schedule, clusters of several blocks
  uint32_t started, finished;
  std::vector<Block*> resident, spare;
  uint64_t progress;  // counts what could end another block's waiting
  bool stopped;
};

extern Grid grid;
extern Block* block;  // of the running thread

inline Thread* self() { return static_cast<Thread*>(current); }
inline Warp& warp_of(Thread* thread) { return *thread->own_warp; }
inline bool checked() { return grid.options.checked; }

// Whether such an access of a thread of `other` is ordered before the running thread's next one.
inline bool ordered_before(uint32_t other, Stamp stamp, Access access) {
  Thread const* thread = self();
  return other == thread->block->linear ? knows(thread->clock, thread->linear, stamp)
                                        : knows_foreign(thread->clock, other, stamp, access);
}

uint64_t random_bits();
uint32_t random_below(uint32_t n);

}  // namespace emulator
