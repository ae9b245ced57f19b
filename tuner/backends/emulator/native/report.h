// Findings about a kernel, and counters of its work.
#pragma once
#include "runtime_api.h"

namespace emulator {

// Kinds are stable identifiers; README.md lists them.
struct Finding {
  char const* kind;
  uint32_t block[3];
  int32_t thread, other_thread;  // -1: none
  Site site, other_site;  // other_site: the conflicting access or the waiting thread
  char buffer[32];               // "shared", or the name of a global buffer
  int64_t offset;                // bytes into the buffer
  uint64_t count;  // occurrences at this site
  char message[256];
};

// Adds a finding about the running thread; null if this kind is already reported at this site, or if there are too
// many.
[[gnu::format(printf, 3, 4)]] Finding* report(char const* kind, Site site, char const* format, ...);
void set_place(Finding* finding, char const* buffer, int64_t offset);
bool is_known(char const* kind, char const* buffer);  // whether the kind was reported for this buffer
void clear_findings();

// Ends the launch, because later results would be meaningless.
[[noreturn]] void stop();

struct Counters {
  uint64_t mma_m16n8k16, mma_m16n8k8, mma_m16n8k8_tf32;
  uint64_t wgmma, wgmma_m16n8k16;  // one per warp of the warpgroup; their products
  uint64_t tcgen05_m16n8k16;  // the same for tcgen05
  uint64_t tensor_columns, tensor_bytes;  // allocated columns; traffic between tensor memory and registers
  uint64_t claimed_registers;  // requested by setmaxnreg, summed over threads
  uint64_t ldmatrix, stmatrix;  // number of 8x8 matrices
  uint64_t bank_conflicts;  // wavefronts beyond the minimum, of ldmatrix, stmatrix and checked accesses
  uint64_t shuffles, syncwarps, barriers;
  // Bulk: between L2 and the SM; cluster: to other blocks' shared memory.
  uint64_t cp_async_bytes, bulk_bytes, cluster_bytes;
  uint64_t global_read_bytes, global_write_bytes, shared_read_bytes, shared_write_bytes;  // checked mode
  uint64_t atomics;
  uint64_t switches;  // fiber switches, the emulator's own overhead
};
extern Counters counters;

}  // namespace emulator
