// Fibers: a switch of context is six registers and a stack pointer.
#include "fiber.h"

#include <sys/mman.h>

#include "report.h"

namespace emulator {

asm(R"(
.text
.hidden emulator_switch
.globl emulator_switch
.type emulator_switch,@function
emulator_switch:
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
  ret
.size emulator_switch,.-emulator_switch
)");

void* main_context;

namespace {

constexpr size_t kStackBytes = 128 << 10;  // the lowest page is a guard
constexpr size_t kStackGuard = 4096;
constexpr int kStacksAtOnce = 128;

std::vector<unsigned char*> spare_stacks, slabs;

void map_stacks() {
  void* slab = mmap(nullptr, kStackBytes * kStacksAtOnce, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) trap("the emulator cannot map stacks: too many threads are resident", Site());
  slabs.push_back(static_cast<unsigned char*>(slab));
  for (int i = kStacksAtOnce; i-- > 0;) {
    unsigned char* stack = slabs.back() + i * kStackBytes;
    mprotect(stack, kStackGuard, PROT_NONE);
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
    if (address - reinterpret_cast<uintptr_t>(slab) < kStackBytes * kStacksAtOnce) return true;
  return false;
}

void prepare(Thread* thread, void (*start)()) {
  // Equal offsets in all stacks would fall into the same sets of the L1 cache: 20 % of a run.
  size_t const stagger = thread->linear % 61 * 192;
  auto top = reinterpret_cast<uintptr_t>(thread->stack) + kStackBytes - stagger - 64;
  void** slot = reinterpret_cast<void**>(top & ~uintptr_t(15));
  *--slot = nullptr;  // a return address that nobody uses, for the ABI's alignment
  *--slot = reinterpret_cast<void*>(start);
  for (int saved = 0; saved < 6; saved++) *--slot = nullptr;
  thread->stack_pointer = slot;
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
