// Fibers: one stack per CUDA thread, and the switch between two of them.
#pragma once
#include "state.h"

namespace emulator {

// Saves the running context's stack pointer in *save and switches to the context saved in `load`.
extern "C" void emulator_switch(void** save, void* load);

extern void* main_context;

unsigned char* take_stack();
void give_stack(unsigned char* stack);
bool in_fiber_stack(uintptr_t address);

// Prepares `thread` to begin at `start` on its own stack.
void prepare(Thread* thread, void (*start)());

// Switches to `next`, a thread of the same block; returns when the running thread is resumed.
void switch_to(Thread* next);
// Called from the launch's own context: runs `first` and the threads it switches to, until one leaves.
void enter_fiber(Thread* first);
// Returns to the launch's own context; the fiber can be resumed.
void leave_fiber_resumably();
[[noreturn]] void leave_fiber();

}  // namespace emulator
