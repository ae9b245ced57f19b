// Work of the copy engine.
#pragma once
#include "state.h"

namespace emulator {

// A copy into shared memory that has been issued and has not landed.
struct Transfer {
  std::vector<unsigned char> data;
  std::vector<uint32_t> chunks;  // shared addresses of its 16-byte parts
  uint32_t barrier;
  Site site;
};

// A copy out of shared memory, of a thread's bulk group.
struct BulkStore {
  void* dst;  // or null, and a tensor map
  void const* map;
  uint32_t src;
  int bytes, rank, coordinates[5];
  bool done;
  Site site;
};

void finish_any_transfer();  // of the running block
void check_outstanding();    // the running thread is about to exit

}  // namespace emulator
