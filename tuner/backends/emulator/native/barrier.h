// Barriers of the block.
#pragma once
#include "state.h"

namespace emulator {
// __syncthreads of those that are left, after a thread has exited.
void on_exit_before_barrier();
}  // namespace emulator
