// Fibers: a context switch saves the callee-saved registers and the stack pointer.
#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "memory.h"
#include "processor.h"
#include "report.h"

namespace emulator {

asm(R"(
.text
.hidden emulator_switch
.globl emulator_switch
.type emulator_switch,%function
emulator_switch:
)"
#if defined(__x86_64__)
    R"(
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
)"
#else
    R"(
  stp x19, x20, [sp, #-160]!
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  ldp x19, x20, [sp], #160
)"
#endif
    R"(
  ret
.size emulator_switch,.-emulator_switch
)");

void* main_context;

namespace {

// The lowest page (4 to 64 KB) is a guard page.
size_t const stack_guard = size_t(sysconf(_SC_PAGESIZE));
size_t const stack_bytes = round_up((124 << 10) + stack_guard, stack_guard);
constexpr int kStacksAtOnce = 128;

std::vector<unsigned char*> spare_stacks, slabs;

void map_stacks() {
  void* slab = mmap(nullptr, stack_bytes * kStacksAtOnce, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) trap("the emulator cannot map stacks: too many threads are resident", Site());
  slabs.push_back(static_cast<unsigned char*>(slab));
  for (int i = kStacksAtOnce; i-- > 0;) {
    unsigned char* stack = slabs.back() + size_t(i) * stack_bytes;
    mprotect(stack, stack_guard, PROT_NONE);
    spare_stacks.push_back(stack);
  }
}

}  // namespace

unsigned char* take_stack() {
  if (spare_stacks.empty()) map_stacks();
  unsigned char* stack = spare_stacks.back();
  spare_stacks.pop_back();
  return stack;
}

void give_stack(unsigned char* stack) { spare_stacks.push_back(stack); }

bool in_fiber_stack(uintptr_t address) {
  for (unsigned char* slab : slabs)
    if (address - reinterpret_cast<uintptr_t>(slab) < stack_bytes * kStacksAtOnce) return true;
  return false;
}

void prepare(Thread* thread, void (*start)()) {
  // Stacks start at different offsets, because equal ones would map to the same L1 sets, which costs 20 % of the run
  // time.
  size_t const stagger = thread->linear % 61 * 192;
  auto top = reinterpret_cast<uintptr_t>(thread->stack) + stack_bytes - stagger - 64;
  void** const context = reinterpret_cast<void**>(top & ~uintptr_t(15)) - kContextWords;
  std::fill_n(context, kContextWords, nullptr);
  context[kReturnWord] = reinterpret_cast<void*>(start);
  thread->stack_pointer = context;
}

void switch_to(Thread* next) {
  Thread* const previous = self();
  if (next == previous) return;
  counters.switches++;
  current = next;
  emulator_switch(&previous->stack_pointer, next->stack_pointer);
}

void enter_fiber(Thread* first) {
  current = first;
  emulator_switch(&main_context, first->stack_pointer);
  current = nullptr;
}

void leave_fiber_resumably() { emulator_switch(&self()->stack_pointer, main_context); }

void leave_fiber() {
  void* abandoned;
  emulator_switch(&abandoned, main_context);
  __builtin_unreachable();
}

}  // namespace emulator
