// Findings about a kernel, as values; and counts of what it did.
#pragma once
#include "runtime_api.h"

namespace emulator {

// Kinds are words that callers may switch on; README.md lists them.
struct Finding {
  char const* kind;
  uint32_t block[3];
  int32_t thread, other_thread;  // -1: none
  Site site, other_site;         // other: the access or the waiter it collides with
  char buffer[32];               // "shared", or the name of a global buffer
  int64_t offset;                // bytes into the buffer
  uint64_t count;                // how often it happened at this site
  char message[256];
};

// A new finding about the running thread; null when this kind was already found at this site, or too many were.
[[gnu::format(printf, 3, 4)]] Finding* report(char const* kind, Site site, char const* format, ...);
void set_place(Finding* finding, char const* buffer, int64_t offset);
bool is_known(char const* kind, char const* buffer);  // whether the kind was found in this buffer
void clear_findings();

// Ends the launch: what follows would be meaningless.
[[noreturn]] void stop();

struct Counters {
  uint64_t mma_m16n8k16, mma_m16n8k8, mma_m16n8k8_tf32;
  uint64_t wgmma, wgmma_m16n8k16;  // a warp's part of one; the products it consists of
  uint64_t tcgen05_m16n8k16;       // likewise
  uint64_t tensor_columns, tensor_bytes;  // allocated; between tensor memory and registers
  uint64_t claimed_registers;             // by setmaxnreg, of all threads
  uint64_t ldmatrix, stmatrix;  // 8x8 matrices
  uint64_t bank_conflicts;      // wavefronts beyond the least, of ldmatrix, stmatrix and checked accesses
  uint64_t shuffles, syncwarps, barriers;
  uint64_t cp_async_bytes, bulk_bytes, cluster_bytes;  // bulk: to and from L2; cluster: to blocks' shared memory
  uint64_t global_read_bytes, global_write_bytes, shared_read_bytes, shared_write_bytes;  // checked mode
  uint64_t atomics;
  uint64_t switches;  // of fibers: the emulator's own cost
};
extern Counters counters;

}  // namespace emulator
