// Faults: the signal handler moves the thread of execution to a landing that reports and leaves the fiber.
#include "fault.h"

#include <cstdint>

#include "fiber.h"
#include "memory.h"
#include "processor.h"
#include "report.h"

namespace emulator {

Site operation_site;

namespace {

constexpr int kSignals[kFaultSignals] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
alignas(16) unsigned char signal_stack[64 << 10], landing_stack[64 << 10];

int fault_signal;
uintptr_t fault_address, fault_instruction;

// In checked mode the access that faults has mostly been reported.
void report_address(Site site) {
  auto const address = fault_address;
  if (in_shared_map(block->shared, address)) {
    if (checked() && is_known("out_of_bounds", "shared")) return;
    int64_t const offset = int64_t(address - reinterpret_cast<uintptr_t>(block->shared.base));
    set_place(report("out_of_bounds", site, "access at shared offset %lld of %u", static_cast<long long>(offset),
                     block->shared.size),
              "shared", offset);
  } else if (Buffer const* buffer = find_buffer(address)) {
    int64_t const offset = int64_t(address - buffer->begin), size = int64_t(buffer->end - buffer->begin);
    if (checked() && (is_known("out_of_bounds", buffer->name) || is_known("read_only", buffer->name))) return;
    bool const inside = offset >= 0 && offset < size;
    set_place(report(inside ? "read_only" : "out_of_bounds", site,
                     inside ? "write to %s at offset %lld of %lld" : "access to %s at offset %lld of %lld",
                     buffer->name, static_cast<long long>(offset), static_cast<long long>(size)),
              buffer->name, offset);
  } else if (in_fiber_stack(address)) {
    report("stack_overflow", site, "a thread's local variables exceed the emulator's stack of 124 KB");
  } else {
    report("out_of_bounds", site, "access to address %#llx, which is no buffer's",
           static_cast<unsigned long long>(address));
  }
}

void land() {
  Site const instruction = Site::instruction(reinterpret_cast<void const*>(fault_instruction));
  Site const site = operation_site.bits ? operation_site : instruction;
  operation_site = {};
  if (fault_signal == SIGILL)
    report("undefined_behaviour", site, "array bounds, alignment or shift width");
  else if (fault_signal == SIGTRAP)  // aarch64, where a division by zero is found as the others are
    report("undefined_behaviour", site, "array bounds, shift width or integer division by zero");
  else if (fault_signal == SIGFPE)
    report("undefined_behaviour", site, "integer division by zero");
  else
    report_address(site);
  stop();
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (!current) {  // a fault of the emulator itself
    ::signal(signal, SIG_DFL);
    return;
  }
  fault_signal = signal;
  fault_address = reinterpret_cast<uintptr_t>(info->si_addr);
  fault_instruction = divert(context, land, landing_stack + sizeof landing_stack);
}

}  // namespace

FaultHandler::FaultHandler() {
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, &stack_before_);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < kFaultSignals; i++) sigaction(kSignals[i], &action, &before_[i]);
}

FaultHandler::~FaultHandler() {
  for (int i = 0; i < kFaultSignals; i++) sigaction(kSignals[i], &before_[i], nullptr);
  sigaltstack(&stack_before_, nullptr);
}

}  // namespace emulator
