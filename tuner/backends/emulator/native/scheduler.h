// Thread scheduling within a block.
#pragma once
#include "state.h"

namespace emulator {

void make_ready(Warp& warp, uint32_t lanes);

// The running thread waits until another one makes it ready. `what`, `site` and `id` identify the wait in a report.
void wait_for(char const* what, Site site, uint32_t id = 0);
// The running thread polls without success: it runs again after the rest of its block has run.
void spin(char const* what, Site site);
// Random schedule: occasionally pauses the running block, so that other blocks can observe its recent writes.
void maybe_pause_block();
// The running thread has finished.
[[noreturn]] void exit_thread();

// Called from the launch's own context: runs the block until it finishes, or until all its threads wait or poll.
void run(Block* resumed);
bool spins(Block const& waiting);
void wake_spinning(Block& waiting);
// Reports where threads wait.
void report_deadlock(char const* kind, char const* message);

}  // namespace emulator
