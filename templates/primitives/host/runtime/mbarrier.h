// Barriers in shared memory that count arrivals and bytes.
#pragma once
#include "state.h"

namespace emulator {

struct Mbarrier {
  uint32_t address;
  int expected, pending;  // arrivals
  int64_t bytes;          // still to come
  int phase;
  uint32_t waiting[kMaxWarps];
  Gather arriving;
  RowRef completed;  // what the last phase's arrivals knew
};

}  // namespace emulator
