// Barriers of the block.
#pragma once
#include "state.h"

namespace emulator {
// Completes __syncthreads for the remaining threads after a thread has exited.
void on_exit_before_barrier();
}  // namespace emulator
