// Fibers: a stack a CUDA thread, and the switch between two of them.
#pragma once
#include "state.h"

namespace emulator {

// Saves the running context's stack pointer in *save and continues the context that `load` was saved from.
extern "C" void emulator_switch(void** save, void* load);

extern void* main_context;

unsigned char* take_stack();
void give_stack(unsigned char* stack);
bool in_fiber_stack(uintptr_t address);

// Makes `thread` start at `start` on its stack when it is next switched to.
void prepare(Thread* thread, void (*start)());

// Continues `next`, of the running thread's block; returns when this thread is continued.
void switch_to(Thread* next);
// From the launch's own context: runs `first` and whatever it switches to, until one leaves.
void enter_fiber(Thread* first);
// Back to the launch's own context; the fiber may be entered again.
void leave_fiber_resumably();
[[noreturn]] void leave_fiber();

}  // namespace emulator
