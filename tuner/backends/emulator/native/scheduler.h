// Who runs next, within a block.
#pragma once
#include "state.h"

namespace emulator {

void make_ready(Warp& warp, uint32_t lanes);

// The running thread waits until another one makes it ready. `what`, `site` and `id` name it in a report.
void wait_for(char const* what, Site site, uint32_t id = 0);
// The running thread polls memory in vain: it runs again when the rest of its block has run.
void spin(char const* what, Site site);
// Random schedule: now and then the running block pauses, where others could see what it just did.
void maybe_pause_block();
// The running thread is done.
[[noreturn]] void exit_thread();

// From the launch's own context: runs the block until it is done, or all its threads wait or spin.
void run(Block* resumed);
bool spins(Block const& waiting);
void wake_spinning(Block& waiting);
// Reports which threads wait where.
void report_deadlock(char const* kind, char const* message);

}  // namespace emulator
